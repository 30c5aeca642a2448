"""own-data.sh and multilingual.sh: settings by the number of pairs, and the text in several languages."""

import itertools
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


LINE = "а б в г д е ж з\n"


@pytest.fixture
def texts(tmp_path):
    """Files of 500 lines; the language of the second one has a region."""
    texts = [tmp_path / "mine.fr", tmp_path / "mine.pt_BR"]
    texts[0].write_text(LINE * 500, encoding="utf-8")
    texts[1].touch()
    return texts


def recipe(*arguments, cwd=PROJECT, **variables):
    env = {"GPUS": "0", "LC_ALL": "C", **variables}  # a locale in which wc does not count the words
    return bash(EXAMPLES / "own-data.sh", *arguments, env=env, cwd=cwd)


def planned(*arguments, **given):
    """The recipe's plan, each command in one line."""
    done = recipe(*arguments, "--dry-run", **given)
    assert (done.returncode, done.stderr) == (0, "")
    return unbroken(done.stdout)


NAMES = ("bpe-operations", "dropout", "lr", "warmup-updates", "max-update")
FEW, SOME = ("4000", "0.3", "2e-3", "1000", "40000"), ("10000", "0.3", "5e-3", "2000", "8000")
# epochs between validations: 50 updates of 2,048, 8,192, … subwords, of which a line has 4/3 · 8
SIZES = [
    (500, "vaswani_transformer_tiny", 20, 2048, FEW),
    (4_999, "vaswani_transformer_tiny", 2, 2048, FEW),
    (5_000, "relative_transformer_tiny", 2, 2048, FEW),
    (19_999, "relative_transformer_tiny", 1, 2048, FEW),
    (20_000, "relative_transformer_tiny", 2, 8192, SOME),
    (99_999, "relative_transformer_tiny", 1, 8192, SOME),
    (100_000, "vaswani_transformer_iwslt_de_en", 10**6, 4096, ("10000", "0.3", "5e-4", "4000", "50000")),
    (1_000_000, "vaswani_transformer_base", 10**6, 25_000, ("32000", "0.1", "7e-4", "4000", "100000")),
]


@pytest.mark.parametrize("pairs, arch, epochs, batch, settings", SIZES, ids=[f"{pairs:,}" for pairs, *_ in SIZES])
def test_own_text_gets_the_settings_for_its_size(texts, pairs, arch, epochs, batch, settings):
    texts[0].write_text(LINE * pairs, encoding="utf-8")
    text = planned(*texts, "--clip-norm", "7", PREPARATION="\n--lowercase\n--max-ratio 5")
    assert f"--arch {arch} " in text and "--clip-norm 7" in text
    assert (*last_options(text, NAMES).values(),) == settings
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
    assert text.endswith('average.pt "a sentence"\n') and "--share-all-embeddings" in text


@pytest.mark.parametrize("between", [" ", "="])
def test_what_is_given_wins(texts, between):
    preparation = f"--max-pairs{between}50 --bpe-operations 777"  # a tenth of 500
    given = {"FAMILY": "vaswani_transformer", "PATIENCE": "3", "PAIRS": "5000"}
    text = planned(*texts, PREPARATION=preparation, **given)
    assert "--save-interval 192 " in text and "--arch vaswani_transformer_tiny " in text
    assert last_options(text, ("bpe-operations", "patience")) == {"bpe-operations": "777", "patience": "3"}


@pytest.mark.parametrize("most, epochs", [("0900", 20), ("900000000000000000000", 20), ("090", 107)])
def test_the_most_pairs_are_a_decimal_number(texts, most, epochs):
    """bash's numbers are others."""
    assert f"--save-interval {epochs} " in planned(*texts, PREPARATION=f"--max-pairs {most}")


def test_pairs_that_are_given_choose_the_settings(texts):
    """To continue a model of so many pairs."""
    text = planned(*texts, PAIRS="100000")
    assert "vaswani_transformer_iwslt_de_en" in text and "--encoder-normalize-before" not in text
    assert "--save-interval-updates" not in text  # an epoch of this text is short


def test_embeddings_are_shared_as_subwords_are(texts, tmp_path):
    (tmp_path / "joint/bpe").mkdir(parents=True)
    (tmp_path / "joint/bpe/codes").touch()
    separate = planned(*texts, PREPARATION="--separate-bpe")
    assert "--share-decoder-input-output-embed" in separate and "--share-all-embeddings" not in separate
    for like, share in (("joint", "--share-all-embeddings"), ("separate", "--share-decoder-input-output-embed")):
        text = planned(*texts, PREPARATION=f"--like {tmp_path / like} --new-characters")
        assert f"{share} " in text and "--bpe-operations" not in text
    assert "--bpe-operations" not in planned(*texts, PREPARATION=f"--like={tmp_path / 'joint'}")
    joint = os.path.relpath(tmp_path / "joint", PROJECT)  # the steps run there, whatever the folder of the call
    assert "--share-all-embeddings " in planned(*texts, cwd=tmp_path, PREPARATION=f"--like {joint}")


@pytest.mark.parametrize("found", [{"lowercase": True}, {"tokenise": False}], ids=str)
def test_scores_are_as_an_earlier_preparation_has_them(texts, tmp_path, found):
    manifest = {"stages": {"tok": {"options": {"lowercase": False, **found}}}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest, indent=2))  # as prepare.py writes it
    text, plain = (planned(*texts, PREPARATION=f"--like {folder}") for folder in (tmp_path / "none", tmp_path))
    assert "--tokenizer moses" in text and "--tokenizer moses" not in plain
    assert "--reference " in text and "--reference " not in plain and "--like " in plain


def test_a_language_without_spaces_is_chosen_by_bleu_of_tokens(texts, tmp_path):
    text = planned(texts[0], texts[1].rename(tmp_path / "mine.zh_CN"), CHOOSE="bleu")
    assert "--eval-tokenized-bleu" in text and "--eval-bleu-detok" not in text


def test_the_data_of_a_model_are_not_replaced(texts, tmp_path):
    """By other text of the same name, other options or files of the preparation, or another number of pairs."""
    test, project = tmp_path / "test.fr", bash("-c", 'printf %q "$PWD"', env={"LC_ALL": "C"}, cwd=PROJECT).stdout
    reading = {"PREPARATION": f"--test {test} {texts[1]}"}

    def folder_of(text, test_set="", **given):
        for file, content in ((texts[0], text), (texts[1], text), (test, test_set)):
            file.write_text(content)
        plan = planned(*(file.name for file in texts), cwd=tmp_path, **given)
        assert f"\ncd {project}\n" in plan  # the command after it names the run from there
        return re.search(r"--output (data/own.mine.fr-pt_BR\S+)", plan)[1]

    folders = [folder_of("a\n"), folder_of("b\n"), folder_of("b\n", PREPARATION="--lowercase")]
    folders += [folder_of("b\n", content, **reading) for content in ("one\n", "another\n")]
    folders.append(folder_of("b\n", PAIRS="100000"))
    assert len({*folders}) == 6


def test_a_path_has_no_character_that_fairseq_does_not_take(texts):
    odd = texts[0].rename(texts[0].with_name("a:b$.fr"))
    assert "--output data/own.a_b_.fr-pt_BR." in planned(odd, texts[1])


@pytest.mark.parametrize(
    "variables, said",
    [
        ({"PAIRS": "1e5"}, "own-data.sh: PAIRS is 1e5: give a whole number from 1 to 999999999"),
        ({"PATIENCE": "0"}, ".*PATIENCE is 0, and has to be.*"),
        ({"MIRROR": "."}, ".*nothing is fetched.*"),
        ({"PREPARATION": "--lowercase --output=data/x"}, ".*PREPARATION: omit --output.*"),
    ],
    ids=str,
)
def test_variables_that_are_refused(texts, variables, said):
    done = recipe(*texts, "--dry-run", **variables)
    assert done.returncode == 1 and re.fullmatch(f"{said}\n", done.stderr)


@pytest.mark.parametrize("names", ["", "mine.fr", "mine.fr none.en", "mine.fr none", "mine.txt theirs.txt"])
def test_texts_that_are_refused(texts, tmp_path, names):
    for name in ("mine.txt", "theirs.txt"):
        (tmp_path / name).touch()
    done = recipe(*(tmp_path / name for name in names.split()))
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


@pytest.mark.parametrize(
    "source, target, begin, second",
    [("mul", "en", "<2en> gl train 1", "<2en> az"), ("en", "mul", "<2gl> en train 1", "<2az> en")],
)
def test_several_languages_in_one_model(tmp_path, source, target, begin, second):
    """Each source sentence begins with its target language; scores are of each language, and recorded so."""
    functions = plan("multilingual.sh", TARGET=target).partition("\n# prepare")[0].partition("\n")[2]
    for language in ("gl", "az"):
        raw = tmp_path / f"{language}-en/raw"
        raw.mkdir(parents=True)
        for side, part in itertools.product((language, "en"), ("train", "valid", "test")):
            (raw / f"{part}.{side}").write_text(f"{side} {part} 1\n{side} {part} 2 3 4 5 6 {language}\n")
    run("bash", "-euc", f"{functions}\njoin {source} {target} {tmp_path} gl az")
    lines = (tmp_path / f"train.{source}").read_text().splitlines()
    assert lines[0] == begin and len(lines) == 4 and lines[2].startswith(second)
    translations = tmp_path / f"test.{target}"  # all right but for the second language's last sentence
    right = translations.read_text().splitlines()
    translations.write_text("\n".join([*right[:3], "x"]) + "\n")
    scored = run("bash", "-euc", f"{functions}\nscore_languages {target} {tmp_path} {translations} gl az")
    (tmp_path / "score.txt").write_text(scored.stdout)
    (tmp_path / "generate.log").touch()
    scores = record.scores(tmp_path)
    first, other = (scores[f"BLEU of tokens, {language}"] for language in ("gl", "az"))
    assert first["score"] == 100 and other["score"] < 50
    assert first["signature"].startswith("BLEU|nrefs:1|case:mixed|eff:no|tok:none|smooth:none|")
    kept, missing = tmp_path / "kept.txt", f"score_languages {target} {tmp_path}/missing {translations} gl az"
    failed = bash("-euo", "pipefail", "-c", f"{functions}\nshow_and_keep {kept} {missing}")
    assert failed.returncode and not kept.exists()


def test_a_direction_between_two_of_several_languages_is_refused():
    assert "choose en or mul" in plan("multilingual.sh", TARGET="de", ok=False)
