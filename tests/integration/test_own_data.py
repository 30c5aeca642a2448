"""examples/own-data.md: its commands one after the other, on made-up sentences and with few updates."""

import itertools
import re
import shlex

import pytest

from user_dir.tools.shared.training_log import read_log

from support import PROJECT, blocks_of, run, training_options

# The page's words that are typed otherwise here: less of everything, and the command's name where it is not installed.
SMALLER = {
    "--bpe-operations 4000": "--bpe-operations 60",
    "--branch-frozen-updates 400": "--branch-frozen-updates 0",
    "--warmup-updates 250": "--warmup-updates 2",
    "--branch-frozen-updates 200": "--branch-frozen-updates 0",
    "2400": "16",
    "1200": "16",
    "--max-tokens 1000": "--max-tokens 100",  # several batches an epoch: at its end fairseq saves none of its updates
    "--save-interval-updates 25": "--save-interval-updates 2",
    "nmt-translate": "python -m user_dir.tools.translate",
    "nmt-export-ctranslate2": "python -m user_dir.tools.export_ctranslate2 --if-possible",
}


@pytest.fixture(scope="module")
def blocks() -> list[str]:
    """The commands of the page, block by block."""
    return blocks_of(PROJECT / "examples/own-data.md")


def test_from_text_to_a_translated_sentence(blocks, tmp_path):
    (further,) = [block for block in blocks if "fairseq-train data/other" in block]
    script = "".join([*blocks[1:5], further])
    for typed, here in SMALLER.items():
        assert typed in script
        script = script.replace(typed, here)
    assert "text=data/tatoeba.fr-en/raw\n" in script
    words = (["le chat", "ma sœur", "Marie"], ["voit", "aime", "connaît"], ["la mer", "Paris", "ce jardin"])
    lines = [" ".join(chosen) + end for chosen in itertools.product(*words) for end in (".", " !")]
    (tmp_path / "data/tatoeba.fr-en/raw").mkdir(parents=True)
    for part, some in (("train", lines[10:]), ("valid", lines[:5]), ("test", lines[5:10])):
        for language, text in (("fr", some), ("en", [line[::-1] for line in some])):
            (tmp_path / f"data/tatoeba.fr-en/raw/{part}.{language}").write_text("".join(f"{line}\n" for line in text))
    for name in ("user_dir", "data-prep"):
        (tmp_path / name).symlink_to(PROJECT / name)
    (tmp_path / "other").symlink_to("data/tatoeba.fr-en/raw")
    printed = run("bash", "-euc", script, cwd=tmp_path).stdout
    assert "| runs/mine/test.en | " in printed and "<unk>: 0 of " in printed
    assert "runs/other/average.pt: the average of " in printed
    assert (tmp_path / "runs/mine/test.en").read_text(encoding="utf-8").count("\n") == 5
    assert len(re.findall(r"^D-\d", (tmp_path / "runs/mine/generate.log").read_text(), re.MULTILINE)) == 5


@pytest.mark.slow
def test_the_recipe_for_own_text(checkout, tmp_path):
    """To the end and again; its last line translates. Then on with other text, and a checkpoint chosen by BLEU."""
    words = (["le chat", "ma sœur", "Marie", "un ami"], ["voit", "aime", "connaît"], ["la mer", "Paris", "ce jardin"])
    lines = [" ".join(chosen) + f" {number}." for chosen in itertools.product(*words) for number in range(30)]
    for language, text in (("fr", lines), ("en", [line.upper() for line in lines])):
        (tmp_path / f"mine.{language}").write_text("".join(f"{line}\n" for line in text))
    recipe, texts = ["bash", checkout / "examples/own-data.sh"], [tmp_path / "mine.fr", tmp_path / "mine.en"]
    command, env = [*recipe, *texts], {"SMOKE": 1, "GPUS": 0, "OUTPUT": tmp_path / "run"}
    first, again = (run(*command, cwd=checkout, env=env).stdout for _ in range(2))
    score = (tmp_path / "run/score.txt").read_text()
    assert "BLEU" in score and score in first and score in again and again.count(" is there") == 3
    *_, translate = first.splitlines()
    answer = run("bash", "-c", translate.replace("a sentence", "le chat voit la mer 3."), cwd=checkout)
    assert answer.stdout.count("\n") == 1

    (data,) = {*re.findall(r"--output (data/\S+)", first)}
    for text in texts:
        text.rename(text.with_stem("other"))
    env |= {"CHOOSE": "bleu", "VALID_PAIRS": 10, "OUTPUT": tmp_path / "more", "PREPARATION": f"--like {data}"}
    more = [*recipe, *(text.with_stem("other") for text in texts), "--finetune-from-model", tmp_path / "run/average.pt"]
    done = run(*more, cwd=checkout, env=env).stdout
    assert "checkpoint_best.pt" in done and "checkpoint_best.pt" not in first
    begun = [read_log(tmp_path / name / "train.log")["train_inner"][10]["loss"] for name in ("run", "more")]
    assert begun[1] < begun[0]


def test_the_longer_training_has_options_that_there_are(blocks):
    (command,) = [block for block in blocks if "vaswani_transformer_base" in block]
    command = command.partition("\npython")[0].replace("--user-dir user_dir ", "").replace("\\\n", "")
    args = training_options(*shlex.split(command)[1:])
    assert args.encoder_ffn_embed_dim == 2048 and args.lr == [7e-4] and args.update_freq == [6]
