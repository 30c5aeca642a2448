"""own-data.sh and multilingual.sh: settings by the number of pairs, and the text in several languages."""

import json
import os
import re
import shlex

import pytest
import record
from unit.examples.support import EXAMPLES, bash, last_options, plan, unbroken

from user_dir.tools.shared.metrics import TOKENISERS

from support import PROJECT, run, training_options


def test_own_text_is_trained_by_hand_as_in_the_quickstart():
    """The page's command; what it does not name has its default."""
    page = (EXAMPLES / "own-data.md").read_text(encoding="utf-8").replace("\\\n", " ")
    page = re.search(r"^fairseq-train (data/mine.*)", page, re.MULTILINE)[1]
    quickstart = re.search(r" fairseq-train (.*)", plan("quickstart.sh").replace("\\\n", " "))[1]
    by_hand, recipes = (vars(training_options(*shlex.split(words))) for words in (page, quickstart))
    differ = {name for name in by_hand.keys() | recipes.keys() if by_hand.get(name) != recipes.get(name)}
    # fairseq's default of --distributed-world-size is the number of GPUs.
    assert differ - {"distributed_world_size"} == {"data", "save_dir", "stop_time_hours"}


def test_the_pages_comparison_is_written_beside_the_runs():
    """nmt-compare refuses the name of a folder, which the page's other commands make."""
    page = (EXAMPLES / "own-data.md").read_text(encoding="utf-8")
    (report,) = re.findall(r"^nmt-compare .*--output (\S+)", page, re.MULTILINE)
    folders = re.findall(r"--save-dir (\S+)", page)
    assert folders and report not in folders


def test_own_text_gets_the_settings_for_its_size(tmp_path):
    texts = [tmp_path / "mine.fr", tmp_path / "mine.pt_BR"]

    def started(*arguments, cwd=PROJECT, **variables):
        env = {"GPUS": "0", "LC_ALL": "C", **variables}  # a locale in which wc does not count the words
        return bash(EXAMPLES / "own-data.sh", *arguments, env=env, cwd=cwd)

    # epochs between validations: 50 updates of 2,048, 8,192, … subwords, of which a line has 4/3 · 8
    names = ("bpe-operations", "dropout", "lr", "warmup-updates", "max-update")
    few, some = ("4000", "0.3", "2e-3", "1000", "40000"), ("10000", "0.3", "5e-3", "2000", "8000")
    sizes = {
        500: ("vaswani_transformer_tiny", 20, 2048, few),
        4_999: ("vaswani_transformer_tiny", 2, 2048, few),
        5_000: ("relative_transformer_tiny", 2, 2048, few),
        19_999: ("relative_transformer_tiny", 1, 2048, few),
        20_000: ("relative_transformer_tiny", 2, 8192, some),
        99_999: ("relative_transformer_tiny", 1, 8192, some),
        100_000: ("vaswani_transformer_iwslt_de_en", 10**6, 4096, ("10000", "0.3", "5e-4", "4000", "50000")),
        1_000_000: ("vaswani_transformer_base", 10**6, 25_000, ("32000", "0.1", "7e-4", "4000", "100000")),
    }
    for pairs, (arch, epochs, batch, settings) in reversed(sizes.items()):  # the last text is short: it is read again
        texts[0].write_text("а б в г д е ж з\n" * pairs, encoding="utf-8")
        texts[1].touch()
        done = started(*texts, "--dry-run", "--clip-norm", "7", PREPARATION="\n--lowercase\n--max-ratio 5")
        assert done.returncode == 0 and f"--arch {arch} " in done.stdout and "--clip-norm 7" in done.stdout, done.stderr
        text = " ".join(done.stdout.replace("\\\n", "").split())
        assert (*last_options(text, names).values(),) == settings
        search = {"last": "5", "beam": "5", "max-len-a": "1"}
        assert last_options(text, search) == search
        assert abs(int(re.search(r" = (\d+) source and target tokens", text)[1]) / batch - 1) < 0.02
        languages = "--source-lang fr --target-lang pt_BR"
        assert f"--train {texts[0]} {texts[1]} {languages} --output data/own.mine.fr-pt_BR" in text
        assert "--lowercase --max-ratio 5" in text and "--patience 10" in text
        assert ("--encoder-normalize-before --decoder-normalize-before" in text) == (pairs < 20_000)
        assert ("--bpe-dropout 0.1" in text) == (pairs < 20_000)
        assert f"--save-interval {epochs} --validate-interval {epochs} " in text
        # An epoch of more pairs has thousands of updates: the last ones would not be averaged.
        by_update = [f"--{what}-interval-updates 1249 " in text for what in ("save", "validate")]
        assert by_update == ["--by update" in text] * 2 == [pairs >= 100_000] * 2
        assert text.endswith('average.pt "a sentence"') and "--share-all-embeddings" in text
    given = {"FAMILY": "vaswani_transformer", "PATIENCE": "3"}
    for between in (" ", "="):
        preparation = f"--max-pairs{between}50 --bpe-operations 777"  # a tenth of 500
        limited = unbroken(started(*texts, "--dry-run", PREPARATION=preparation, PAIRS="5000", **given).stdout)
        assert "--save-interval 192 " in limited and "--arch vaswani_transformer_tiny " in limited
        assert last_options(limited, ("bpe-operations", "patience")) == {"bpe-operations": "777", "patience": "3"}
    for most, epochs in (("0900", 20), ("900000000000000000000", 20), ("090", 107)):  # bash's numbers are others
        limited = started(*texts, "--dry-run", PREPARATION=f"--max-pairs {most}")
        assert not limited.stderr and f"--save-interval {epochs} " in unbroken(limited.stdout)
    separate = started(*texts, "--dry-run", PREPARATION="--separate-bpe").stdout
    assert "--share-decoder-input-output-embed" in separate and "--share-all-embeddings" not in separate
    (tmp_path / "joint/bpe").mkdir(parents=True)
    (tmp_path / "joint/bpe/codes").touch()
    for like, share in (("joint", "--share-all-embeddings"), ("separate", "--share-decoder-input-output-embed")):
        text = started(*texts, "--dry-run", PREPARATION=f"--like {tmp_path / like} --new-characters").stdout
        assert f"{share} " in text and "--bpe-operations" not in text
    for found in ({"lowercase": True}, {"tokenise": False}):  # by which prepare.py goes
        manifest = json.dumps({"stages": {"tok": {"options": {"lowercase": False, **found}}}}, indent=2)
        (tmp_path / "joint/manifest.json").write_text(manifest)
        plain = started(*texts, "--dry-run", PREPARATION=f"--like {tmp_path / 'joint'}").stdout
        assert "--tokenizer moses" in text and "--tokenizer moses" not in plain
        assert "--reference " in text and "--reference " not in plain and "--like " in plain
    like = f"--like={tmp_path / 'joint'}"
    assert "--bpe-operations" not in started(*texts, "--dry-run", PREPARATION=like).stdout
    joint = os.path.relpath(tmp_path / "joint", PROJECT)  # the steps run there, whatever the folder of the call
    assert "--share-all-embeddings " in started(*texts, "--dry-run", cwd=tmp_path, PREPARATION=f"--like {joint}").stdout
    texts[1] = texts[1].rename(tmp_path / "mine.zh_CN")
    text = started(*texts, "--dry-run", CHOOSE="bleu").stdout
    assert "--eval-tokenized-bleu" in text and "--eval-bleu-detok" not in text
    texts[1] = texts[1].rename(tmp_path / "mine.pt_BR")
    folders, project = set(), bash("-c", 'printf %q "$PWD"', env={"LC_ALL": "C"}, cwd=PROJECT).stdout
    for place, preparation in (("a", ""), ("b", ""), ("b", "--lowercase")):  # a model's data are not replaced
        (tmp_path / place).mkdir(exist_ok=True)
        for text in texts:
            (tmp_path / place / text.name).write_text(f"{place}\n")
        named = [f"{place}/{text.name}" for text in texts]
        done = started(*named, "--dry-run", cwd=tmp_path, PREPARATION=preparation)
        folders.add(re.search(r"--output \\?\s*(data/own.mine.fr-pt_BR\S+)", done.stdout)[1])
        assert f"\ncd {project}\n" in done.stdout  # the command after it names the run from there
    assert len(folders) == 3
    for content in ("one\n", "another\n"):  # of a file that the preparation reads
        (tmp_path / "test.fr").write_text(content)
        done = started(*texts, "--dry-run", PREPARATION=f"--test {tmp_path}/test.fr {texts[1]}")
        folders.add(re.search(r"--output \\?\s*(data/own.mine.fr-pt_BR\S+)", done.stdout)[1])
    assert len(folders) == 5
    many = started(*named, "--dry-run", cwd=tmp_path, PAIRS="100000").stdout  # to continue a model of so many pairs
    assert "vaswani_transformer_iwslt_de_en" in many and "--encoder-normalize-before" not in many
    assert "--save-interval-updates" not in many  # an epoch of this text is short
    folders.add(re.search(r"--output \\?\s*(data/own.mine.fr-pt_BR\S+)", many)[1])
    assert len(folders) == 6
    wrong = started(*texts, "--dry-run", PAIRS="1e5")
    said = "own-data.sh: PAIRS is 1e5: give a whole number from 1 to 999999999\n"
    assert (wrong.returncode, wrong.stderr) == (1, said)
    odd = texts[0].with_name("a:b$.fr")  # fairseq takes neither in a path
    odd.touch()
    assert "--output data/own.a_b_.fr-pt_BR." in unbroken(started(odd, texts[1], "--dry-run").stdout)
    for name in ("mine.txt", "theirs.txt"):
        (tmp_path / name).touch()
    same = [tmp_path / "mine.txt", tmp_path / "theirs.txt"]
    assert "nothing is fetched" in started(*texts, "--dry-run", MIRROR=str(tmp_path)).stderr
    named = started(*texts, "--dry-run", PREPARATION="--lowercase --output=data/x")
    assert named.returncode == 1 and "PREPARATION: omit --output" in named.stderr
    assert "PATIENCE is 0, and has to be" in started(*texts, "--dry-run", PATIENCE="0").stderr
    for wrong in ([], texts[:1], [texts[0], tmp_path / "none.en"], [texts[0], tmp_path / "none"], same):
        done = started(*wrong)
        assert done.returncode == 1 and done.stderr.count("\n") == 1 and "name two text files" in done.stderr


@pytest.mark.parametrize("long", ["fr", "en"])
def test_a_sentence_that_is_too_long_to_translate(tmp_path, long):
    (prepare,) = re.findall(r"^prepare\(\) .*?^}", (EXAMPLES / "own-data.sh").read_text(), re.M | re.S)
    (tmp_path / "bpe").mkdir()
    for language in ("fr", "en"):
        (tmp_path / f"bpe/test.{language}").write_text("a " * (1023 + (language == long)) + "\n")
    settings = f"run() {{ :; }}; data={tmp_path} source=fr target=en dry_run= texts=() preparation=()"
    done = bash("-euc", f"{settings}\n{prepare}\nprepare")
    assert done.returncode == 1 and f"test.{long}, line 1: it has 1024 subwords" in done.stderr


def test_languages_without_spaces_are_those_of_the_scores():
    """As CHOOSE=bleu counts them."""
    (languages,) = re.findall(r"\^\(([a-z|]+)\)\(_", (EXAMPLES / "recipe.sh").read_text())
    assert {*languages.split("|")} == {*TOKENISERS}


def test_several_languages_in_one_model(tmp_path):
    """Each source sentence begins with its target language; scores are of each language, and recorded so."""
    for target, first in (("en", "<2en> gl train 1"), ("mul", "<2gl> en train 1")):
        functions = plan("multilingual.sh", TARGET=target).partition("\n# prepare")[0].partition("\n")[2]
        for language in ("gl", "az"):
            raw = tmp_path / f"{language}-en/raw"
            raw.mkdir(parents=True, exist_ok=True)
            for side, part in ((side, part) for side in (language, "en") for part in ("train", "valid", "test")):
                (raw / f"{part}.{side}").write_text(f"{side} {part} 1\n{side} {part} 2 3 4 5 6 {language}\n")
        source = {"en": "mul", "mul": "en"}[target]
        run("bash", "-euc", f"{functions}\njoin {source} {target} {tmp_path} gl az")
        lines = (tmp_path / f"train.{source}").read_text().splitlines()
        assert lines[0] == first and len(lines) == 4
        assert lines[2].startswith("<2en> az" if target == "en" else "<2az> en")
        translations = tmp_path / f"test.{target}"  # all right but for the second language's last sentence
        right = translations.read_text().splitlines()
        translations.write_text("\n".join([*right[:3], "x"]) + "\n")
        scored = run("bash", "-euc", f"{functions}\nscore_languages {target} {tmp_path} {translations} gl az")
        (tmp_path / "score.txt").write_text(scored.stdout)
        (tmp_path / "generate.log").touch()
        scores = record.scores(tmp_path)
        first, second = (scores[f"BLEU of tokens, {language}"] for language in ("gl", "az"))
        assert first["score"] == 100 and second["score"] < 50
        assert first["signature"].startswith("BLEU|nrefs:1|case:mixed|eff:no|tok:none|smooth:none|")
        kept, missing = tmp_path / "kept.txt", f"score_languages {target} {tmp_path}/missing {translations} gl az"
        failed = bash("-euo", "pipefail", "-c", f"{functions}\nshow_and_keep {kept} {missing}")
        assert failed.returncode and not kept.exists()
    assert "choose en or mul" in plan("multilingual.sh", TARGET="de", ok=False)
