"""Made what lies beside it: python make.py EMPTY_FOLDER, in the project's environment.

These files are never made anew, whatever becomes of the models: they prove that earlier checkpoints still load and
translate as they did (test_old_checkpoints.py). A family or a form of one that comes later is added as a further row.
"""

import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

PROJECT = pathlib.Path(__file__).resolve().parents[2]
# name: its family, and the commit whose user_dir trained it
CHECKPOINTS = {
    "vaswani_transformer": ("vaswani_transformer", "9ae9f60"),
    "relative_transformer": ("relative_transformer", "9ae9f60"),
    "weighted_transformer": ("weighted_transformer", "9ae9f60"),
    "weighted_relative_transformer": ("weighted_relative_transformer", "9ae9f60"),
    # Its version had no --branch-residual yet.
    "weighted_relative_transformer-first": ("weighted_relative_transformer", "1084442^"),
    # From here on the decoder's branches are in self-attention, and each adds its share of W^O's bias.
    "weighted_transformer-self": ("weighted_transformer", "32eff6d"),
}
NOUNS = {"l'homme": "man", "la fille": "girl", "le chat": "cat", "la sœur": "sister", "le garçon": "boy"}
ADJECTIVES = {"": "", " noir": "black ", " âgé": "old ", " aimable": "kind ", " étrange": "strange ", " riche": "rich "}
VERBS = {"voit": "sees", "cherche": "looks for", "aime": "likes", "n'aime pas": "doesn't like", "connaît": "knows"}
ENDS = {".": ".", " !": "!", " ?": "?", ", dit-il.": ", he says."}
TRAINING = """
    --encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 24 --encoder-ffn-embed-dim 48 --share-all-embeddings
    --optimizer fused_adam --branch-frozen-updates 100 --branch-warmup-updates 100 --adam-betas (0.9,0.98)
    --lr-scheduler polynomial_decay --lr 8e-3 --warmup-updates 100 --total-num-update 1000 --max-update 1000
    --criterion label_smoothed_cross_entropy --clip-norm 1 --max-tokens 500 --dropout 0 --seed 1 --cpu
    --disable-validation --no-epoch-checkpoints --no-save-optimizer-state --log-format simple
""".split()


def sentence() -> tuple[str, str]:
    """French, and its English with adjectives before nouns."""
    (noun, man), (other, girl) = random.choices([*NOUNS.items()], k=2)
    (black, dark), (verb, sees), (end, stop) = (random.choice([*some.items()]) for some in (ADJECTIVES, VERBS, ENDS))
    english = f"the {dark}{man} {sees} the {girl}{stop}"
    french = f"{noun}{black} {verb} {other}{end}"
    return french[0].upper() + french[1:], english[0].upper() + english[1:]


def run(*command, cwd) -> str:
    done = subprocess.run([*map(str, command)], cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"{command}\n{done.stdout}")
    return done.stdout


def make(output: pathlib.Path, folder: pathlib.Path) -> None:
    """Makes the files in `output`; what else there is, in `folder`."""
    random.seed(1)
    pairs = [*{sentence(): None for _ in range(4000)}]
    for side, language in enumerate(("fr", "en")):
        for part, some in (("test", pairs[:20]), ("valid", pairs[20:60]), ("train", pairs[60:])):
            (folder / f"{part}.{language}").write_text("".join(f"{pair[side]}\n" for pair in some), encoding="utf-8")
    texts = [[f"--{part}", f"{part}.fr", f"{part}.en"] for part in ("train", "valid", "test")]
    options = "--source-lang fr --target-lang en --output corpus --bpe-operations 150 --workers 1".split()
    run("python", PROJECT / "data-prep/prepare.py", *sum(texts, []), *options, cwd=folder)
    corpus = folder / "corpus"
    (output / "bpe").mkdir()
    (output / "data-bin").mkdir()
    for name in ("manifest.json", "bpe/codes", *(f"data-bin/dict.{language}.txt" for language in ("fr", "en"))):
        shutil.copy(corpus / name, output / name)
    for path in (corpus / "data-bin").glob("test.*"):
        shutil.copy(path, output / "data-bin")
    shutil.copy(folder / "test.fr", output / "test.fr")
    for name, (family, commit) in CHECKPOINTS.items():
        code = folder / commit
        code.mkdir(exist_ok=True)
        archive = subprocess.run(["git", "archive", commit, "user_dir"], cwd=PROJECT, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", code], input=archive.stdout, check=True)
        model = ["--user-dir", f"../{commit}/user_dir", "--arch", f"{family}_tiny", "--save-dir", f"runs/{name}"]
        print(name, run("fairseq-train", "data-bin", *model, *TRAINING, cwd=corpus).splitlines()[-1], sep="\n")
        shutil.copy(corpus / "runs" / name / "checkpoint_last.pt", output / f"{name}.pt")
        found = translations(corpus, model[1], output / f"{name}.pt")
        (output / f"{name}.txt").write_text(found, encoding="utf-8")
        references = (folder / "test.en").read_text(encoding="utf-8").splitlines()
        wrong = [line for line, reference in zip(found.splitlines(), references) if not line.endswith(f"\t{reference}")]
        print(f"{len(wrong)} of {len(references)} are wrong", *wrong, sep="\n")


def translations(corpus: pathlib.Path, user_dir: str, checkpoint: pathlib.Path) -> str:
    """Score and text of each sentence of the test set."""
    options = "--beam 4 --lenpen 0.6 --max-len-a 1 --max-len-b 50 --remove-bpe --tokenizer moses -s fr -t en".split()
    options += ["--required-batch-size-multiple", "1", "--user-dir", user_dir, "--path", checkpoint, "--cpu"]
    lines = re.findall(r"^D-(\d+)\t(\S+)\t(.*)$", run("fairseq-generate", "data-bin", *options, cwd=corpus), re.M)
    found = {int(number): f"{float(score):.4f}\t{text}\n" for number, score, text in lines}
    return "".join(found[number] for number in sorted(found))


if __name__ == "__main__":
    (empty,) = map(pathlib.Path, sys.argv[1:])
    if empty.exists() and any(empty.iterdir()):
        sys.exit(f"{empty} holds files: they are never made anew")
    empty.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        make(empty.resolve(), pathlib.Path(temporary))
