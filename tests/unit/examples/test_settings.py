"""The recipes' plans: complete, with the batch, updates, averaging and options of the papers, for every family."""

import itertools
import os
import re
import subprocess

import pytest
from unit.examples.support import EXAMPLES, bash, copied, definitions, last_options, option, plan, steps_of

from user_dir.families import FAMILIES, SIZES

from support import executable, one_line, training_options

# The published settings of the trainings, beside those that test_the_papers_settings computes.
MULTI30K = {"lr": "5e-3", "warmup-updates": "2000", "max-update": "8000", "dropout": "0.3", "patience": "10"}
MULTI30K |= {"beam": "5", "last": "10", "keep-last-epochs": "10", "adam-eps": "1e-9"}
IWSLT14 = {"lr": "5e-4", "warmup-updates": "4000", "max-update": "50000", "dropout": "0.3", "weight-decay": "1e-4"}
SETTINGS = {
    "multi30k.sh": {**MULTI30K, "bpe-operations": "10000"},
    "multi30k_published.sh": {**MULTI30K, "clip-norm": "25", "adam-eps": "1e-8"},  # their fairseq's default
    "iwslt14.sh": {**IWSLT14, "bpe-operations": "10000", "beam": "5", "last": "10", "keep-last-epochs": "10"},
    "wmt14.sh": {"warmup-updates": "4000", "adam-eps": "1e-9"},
}
SETTINGS["iwslt14.sh"]["adam-eps"] = "1e-8"
RULE = {"label-smoothing": "0.1", "lr-scheduler": "inverse_sqrt", "warmup-init-lr": "1e-7"}
RULE |= {"adam-betas": r"\(0.9\,\ 0.98\)"}


def test_the_batch_does_not_depend_on_the_processes():
    """As few passes as the memory allows, all of one size."""
    cases = [*itertools.product((4096, 8192, 25000), (1000, 4096, 30000), (1, 2, 3, 4, 7, 8, 16, 64))]
    calls = "".join("share_batch {} {} {}; echo $max_tokens $update_freq\n".format(*case) for case in cases)
    found = bash("-euc", f"{definitions('share_batch')}\n{calls}", env=os.environ).stdout.splitlines()
    for (batch, memory, workers), line in zip(cases, found, strict=True):
        tokens, passes = map(int, line.split())
        assert tokens <= memory and abs(tokens * passes * workers / batch - 1) < 0.02
        assert passes == 1 or (passes - 1) * workers * memory < batch


BATCHES = {"wmt14.sh": 25000, "iwslt14.sh": 4096, "ted.sh": 4096, "multi30k.sh": 8192, "multi30k_published.sh": 8192}


@pytest.mark.parametrize("recipe, batch", BATCHES.items())
def test_the_batch_is_the_papers(recipe, batch):
    assert int(option(plan(recipe, GPUS=8, SMOKE=1), "--max-tokens")) >= 300  # no sentence is too long
    text = plan(recipe, GPUS=2)
    tokens, passes = int(option(text, "--max-tokens")), int(option(text, "--update-freq"))
    assert tokens <= 4096 and abs(tokens * passes * 2 / batch - 1) < 0.02


@pytest.mark.parametrize("recipe, target", [*((recipe, None) for recipe in SETTINGS), ("multi30k_published.sh", "fr")])
def test_the_published_settings(recipe, target):
    expected = {**RULE, **SETTINGS[recipe]}
    text = plan(recipe, TARGET=target)
    assert last_options(text, expected) == expected
    shared = "decoder-input-output-embed" if recipe == "iwslt14.sh" else "all-embeddings"
    assert re.findall(r"--share-(\S+)", text) == [shared]
    assert ("--reference" in text) == (recipe == "wmt14.sh")  # the others' texts are lower-cased
    direction = ("de", "en") if recipe == "iwslt14.sh" else ("en", target or "de")
    assert "--source-lang {} --target-lang {} --user-dir ".format(*direction) in text
    assert text.count("--task checked_translation ") == 2  # of training and of search
    assert f"--by {'update' if recipe == 'wmt14.sh' else 'epoch'} --or-fewer " in text  # after an early end, too
    if recipe == "multi30k_published.sh":
        language = target or "de"
        assert f"/data/multi30k-en-{language}\n" in text and f"--target-lang {language} " in text
        assert f"/data/multi30k-en-{language}\n" in plan(recipe, SOURCE=language, TARGET="en")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("size", "target"), [("base", "de"), ("base", "fr"), ("big", "de"), ("big", "fr")])
def test_the_papers_settings(family, size, target):
    text = plan("wmt14.sh", FAMILY=family, SIZE=size, TARGET=target)
    updates, last, dropped = FAMILIES[family].training_of(size)  # test_families.py has them from the papers once more
    big = size == "big"
    assert int(option(text, "--max-update")) == updates
    if last == 1:
        assert f"average_checkpoints {option(text, '--save-dir')}/checkpoint_last.pt --output" in text
    else:
        assert option(text, "--last") == option(text, "--keep-interval-updates") == str(last)
        assert int(option(text, "--max-update")) % int(option(text, "--save-interval-updates")) == 0
        assert option(text, "--save-interval-updates") == ("625" if big else "1250")  # ten minutes of eight GPUs
    assert option(text, "--arch") == f"{family}_{size}{'_en_fr' if big and target == 'fr' else ''}"
    assert option(text, "--branch-frozen-updates") == "10000"
    assert option(text, "--attention-dropout") == str(dropped)
    assert not dropped or option(text, "--dropout") == str(dropped)  # Vaswani et al. have 0.1 with French in both
    assert "--no-epoch-checkpoints" in text  # all of them would be kept
    assert f" --reference data/wmt14.en-{target}/raw/test.{target} " in text
    assert float(option(text, "--lr")) == pytest.approx((1024 if big else 512) ** -0.5 * 4000**-0.5, rel=1e-3)
    assert option(text, "--beam") == "4" and "--max-len-a 1 --max-len-b 50" in " ".join(text.replace("\\", " ").split())
    assert option(text, "--lenpen") == "0.6" and option(text, "--lenpen-form") == "vaswani"
    assert option(text, "--bpe-operations") == {"de": "37000", "fr": "32000"}[target]
    figure = {("base", "de"): 27.3, ("base", "fr"): 38.1, ("big", "de"): 28.4, ("big", "fr"): 41.8}[size, target]
    assert re.search(rf"to compare with\n(.*\n)*# Vaswani et al. 2017 +{figure}\n", text)
    page = (EXAMPLES / "results.md").read_text(encoding="utf-8")
    published = re.findall(r"^# (\w+ et al\. .*?) +([\d.]+)$", text.partition("to compare with")[2], re.M)
    assert len(published) == 4
    for name, score in published:
        cells = re.search(rf"^\| {re.escape(name)} \|(.*)", page, re.M)[1].split("|")
        assert re.findall(r"[\d.]+", cells[target == "fr"])[big] == score


@pytest.mark.parametrize("family", ("weighted_relative_transformer", "transformer"))
@pytest.mark.parametrize("recipe", SETTINGS)
def test_every_plan_is_complete_and_does_nothing(recipe, family, tmp_path):
    examples = copied(tmp_path)
    before = set(tmp_path.rglob("*"))
    for smoke in (0, 1):
        variables = {"FAMILY": family, "SMOKE": smoke, "MIRROR": tmp_path, "OUTPUT": "runs/elsewhere"}
        text = plan(recipe, "--clip-norm", "a b", examples=examples, **variables)
        steps = steps_of(text)
        assert steps == ["prepare", "train", "average", "translate", "score", "record", "to compare with"]
        assert re.search(rf"(--mirror|en de) {tmp_path}\n", text)
        assert ("--attention-dropout" in text) == (recipe == "wmt14.sh")  # elsewhere all families are trained alike
        assert "--save-dir runs/elsewhere " in text and r"--clip-norm a\ b" in text
        assert " --path runs/elsewhere/average.pt " in text
        assert ("--encoder-layers 1" in text) == bool(smoke)
        assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    assert set(tmp_path.rglob("*")) == before


def test_fairseqs_own_models_have_the_sizes_of_ours():
    found = re.findall(r"(\w+)\) model=\(--arch (\w+)\)", (EXAMPLES / "recipe.sh").read_text())
    assert len(found) == 4
    for size, arch in found:
        args = training_options("data", "--task", "translation", "--arch", arch)
        names = (f"encoder_{name}" for name in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads"))
        assert (*(getattr(args, name) for name in names), args.dropout) == SIZES[size]


def test_stock_transformer_has_the_same_size():
    text = plan("multi30k_published.sh", FAMILY="transformer")
    for side in ("encoder", "decoder"):
        assert f"--{side}-layers 4 --{side}-embed-dim 128 --{side}-ffn-embed-dim 256 --{side}-attention-heads 4" in text
    commands = text.partition("# prepare")[2]  # after the functions with which every plan begins
    assert "--autocast" not in commands and "_precision" not in commands
    assert "--optimizer adam " in commands and "--criterion label_smoothed_cross_entropy " in commands
    assert "--branch" not in commands


@pytest.mark.parametrize(("recipe", "detokenised"), [("wmt14.sh", True), ("multi30k.sh", False), ("g2p.sh", False)])
def test_the_checkpoint_that_is_chosen(recipe, detokenised):
    """By the same BLEU as the score: of text, or of tokens."""
    text = plan(recipe, CHOOSE="bleu", VALID_PAIRS=300)
    best = "--best-checkpoint-metric bleu --maximize-best-checkpoint-metric"
    assert "--eval-bleu " in text and best in text and "--valid-pairs 300" in text
    assert ("--eval-bleu-detok moses" in text) == detokenised != ("--eval-tokenized-bleu" in text)
    assert r"--eval-bleu-remove-bpe --eval-bleu-args \{\"beam\":\ 1\," in text  # of words, by greedy search
    assert "/checkpoint_best.pt --output" in text
    loss = plan(recipe, CHOOSE="loss")
    assert "/checkpoint_best.pt --output" in loss and "bleu" not in loss and "--valid-pairs" not in loss
    assert option(text, "--save-dir") != option(loss, "--save-dir")


@pytest.mark.parametrize("family", (*FAMILIES, "transformer"))
def test_letters_to_sounds(family, tmp_path):
    """The settings published for SIGMORPHON 2021; what they leave out are fairseq's defaults."""
    text = plan("g2p.sh", FAMILY=family, SOURCE="kor", MIRROR=tmp_path)
    shape = "--{0}-embed-dim 256 --{0}-ffn-embed-dim 1024"
    assert all(shape.format(side) in text for side in ("encoder", "decoder"))
    for side in ("encoder", "decoder"):
        assert f"--{side}-normalize-before" in text
        assert family != "transformer" or f"--{side}-layers 4 " in text and f"--{side}-attention-heads 4 " in text
    expected = {"batch-size": "400", "max-update": "5000", "patience": "20", "clip-norm": "1", "adam-eps": "1e-8"}
    expected |= {"lr": "1e-3", "warmup-updates": "1000", "update-freq": "1", "thresholdsrc": "5", "beam": "5"}
    expected |= {"thresholdtgt": "5", "attention-dropout": "0.1", "activation-dropout": "0.1", "dropout": "0.1"}
    expected |= RULE | {"adam-betas": r"\(0.9\,\ 0.999\)"}
    assert last_options(text, expected) == expected and "--share-decoder-input-output-embed" in text
    assert f"python examples/g2p.py prepare {tmp_path} kor\n" in text and "moses" not in text
    assert "/checkpoint_best.pt --output" in text
    for processes, size in ((2, 200), (4, 100)):
        text = plan("g2p.sh", GPUS=0, PROCESSES=processes)
        assert option(text, "--batch-size") == str(size)
        # fairseq would take 96 of 100, a multiple of its default.
        assert ("--required-batch-size-multiple 1 " in text) == (size % 8 > 0)


def test_talks(tmp_path):
    """Their tokens stay; fairseq's own model is the one that the course used."""
    text = plan("ted.sh", SOURCE="az", MERGES="1000", FAMILY="transformer", MIRROR=tmp_path)
    assert "prepare.py ted --source-lang az --target-lang en --output data/ted.az-en.1000 " in text
    expected = {**IWSLT14, "max-update": "20000", "patience": "10", "bpe-operations": "1000", "beam": "5", "last": "5"}
    assert last_options(text, expected) == expected and "--share-all-embeddings" in text
    assert "--pretokenised" in text and "moses" not in text
    several, texts = plan("multilingual.sh"), "data/ted.mul-en.8000.texts"
    assert " --max-ratio 100 --pretokenised --bpe-operations 8000\n" in several
    parts = (f" --{part} {texts}/{part}.mul {texts}/{part}.en " for part in ("train", "valid", "test"))
    assert all(part in several for part in parts)  # or some would be split off from the training text
    assert "--arch transformer_iwslt_de_en " in text and "--target-lang en" in text.rpartition("tools.score")[2]


def test_sequences(tmp_path):
    """The settings of Ontañón et al. 2022; only SCAN is read from somewhere."""
    text = plan("sequences.sh", TASK="scan_jump", MIRROR=tmp_path)
    expected = {"batch-size": "64", "warmup-updates": "4000", "lr": "2e-3", "label-smoothing": "0", "beam": "1"}
    expected |= {"encoder-layers": "2", "decoder-embed-dim": "64", "encoder-ffn-embed-dim": "256"}
    expected |= {"max-len-b": "60", "max-target-positions": "64", "dropout": "0.1", "adam-eps": "1e-9"}
    expected |= {"decoder-layers": "2", "encoder-embed-dim": "64", "decoder-ffn-embed-dim": "256"}
    expected |= {"max-len-a": "0", "max-source-positions": "64", "max-update": "10000"}
    expected = RULE | expected
    assert last_options(text, expected) == expected and "--share-decoder-input-output-embed" in text
    assert f"sequences.py prepare scan_jump {tmp_path}\n" in text and "/checkpoint_last.pt --output" in text
    assert "sequences.py prepare reverse\n" in plan("sequences.sh", MIRROR=tmp_path)
    assert "git clone" in plan("sequences.sh", TASK="scan_length")


@pytest.mark.parametrize("family", (*FAMILIES, "transformer"))
def test_parsing(family, tmp_path):
    """Vaswani et al. 2017, 6.3; dropout, rate and warm-up are tensor2tensor's."""
    shape = "--encoder-layers 4 --decoder-layers 4 --encoder-embed-dim 1024 --decoder-embed-dim 1024 "
    for size, merges, dropout, warmup in (("base", 16000, 0.2, 16000), ("big", 32000, 0.1, 4000)):
        parsed = {"PARSED": "."} if size == "big" else {}
        text = plan("parsing.sh", FAMILY=family, TREEBANK=".", **parsed, cwd=tmp_path)
        sections = " ".join(f"{tmp_path}/{section:02}" for section in range(2, 22))
        assert f" --train {sections} " in text and f" --valid {tmp_path}/22 --test {tmp_path}/23 " in text
        assert shape in text and "--beam 21 --lenpen 0.3 --max-len-a 1 --max-len-b 300" in text
        assert option(text, "--dropout") == str(dropout) and option(text, "--bpe-operations") == str(merges)
        assert float(option(text, "--lr")) == pytest.approx(0.5 * 1024**-0.5 * warmup**-0.5, rel=5e-3)
        assert abs(int(re.search(r" = (\d+) source and target tokens", text)[1]) / 25_000 - 1) < 0.02
        assert option(text, "--warmup-updates") == str(warmup) and "--lenpen-form vaswani" in text
        assert ("--attention-dropout 0.2" in text) == (size == "base")
        assert family == "transformer" or option(text, "--arch") == f"{family}_{size}"
        assert "moses" not in text and "--share" not in text and steps_of(text)[-1] == "to compare with"


def test_parsing_with_more_trees_and_with_the_sample(tmp_path):
    more = executable(tmp_path / "more", "")
    assert f"/20 {tmp_path}/21 {more} " in plan("parsing.sh", TREEBANK=tmp_path, PARSED="more", cwd=tmp_path)
    text = plan("parsing.sh", FAMILY="weighted_transformer", TREEBANK=tmp_path)
    page = one_line(EXAMPLES / "README.md")
    assert "/checkpoint_last.pt --output" in text and "on WMT14 and WSJ the last)" in page
    text = plan("parsing.sh")
    expected = {"lr": "3e-3", "clip-norm": "1", "dropout": "0.1", "warmup-updates": "200", "max-update": "600"}
    assert last_options(text, expected) == expected and "/checkpoint_last.pt --output" in text
    assert " = 1000 source and target tokens" in text and "--lenpen-form" not in text  # as of the page's figures
    sample = plan("parsing.sh", SMOKE=1)
    assert "sample_treebank.py data/sample_trees\n" in sample and "--train data/sample_trees/train.mrg " in sample
    assert sample.index("--encoder-layers 2") < sample.index("--encoder-layers 1")  # the last word counts
    assert "--max-pairs 1000" in sample and "--gold data/sample_trees.words-brackets.smoke/raw/test.brackets" in sample


def test_what_follows_the_recipe_wins():
    text = plan("wmt14.sh", "--log-interval", "7", "--autocast", "off", "--lr", "1")
    train = text.partition("# train")[2].partition("# average")[0]
    assert train.rindex("--log-interval 7") > train.rindex("--max-tokens")
    assert train.rindex("--lr 1") > train.index("--lr 6.99e-4")
    assert "--autocast off" in train and "in_precision" not in train
    assert re.search(r"^choose_precision runs/\S+/precision off$", train, re.MULTILINE)
    for half in ("--fp16", "--amp"):
        train = plan("wmt14.sh", half).partition("# train")[2].partition("# average")[0]
        assert half in train and "--autocast" not in train and "precision" not in train


@pytest.mark.parametrize("typed", [["--max-update", "1200"], ["--max-update=1200"]])
def test_a_number_of_updates_changes_what_depends_on_it(typed):
    for recipe in ("wmt14.sh", "quickstart.sh"):
        assert (text := plan(recipe, *typed)) == plan(recipe, UPDATES=1200)
        # Two more than the five that are averaged; fairseq saves none where an epoch ends.
        assert recipe != "wmt14.sh" or option(text, "--save-interval-updates") == "171"


def test_the_batch_on_the_page():
    plans = [plan("wmt14.sh", GPUS=gpus) for gpus in (1, 8)]
    found = [option(text, name) for text in plans for name in ("--max-tokens", "--update-freq")]
    page = one_line(EXAMPLES / "README.md")
    assert "{} and {} on one GPU, {} and {} on eight".format(*found) in page


def test_the_recipes_that_install_ctranslate2_are_those_of_the_page():
    found = sorted(path.name for path in EXAMPLES.glob("*.sh") if "\nextras=ctranslate2" in path.read_text())
    assert found == ["own-data.sh", "quickstart.sh"]
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert "which only the quickstart and `own-data.sh` install" in page
