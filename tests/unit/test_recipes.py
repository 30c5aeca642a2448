"""The recipes' plans: commands, batch, updates and averaging for every family and number of GPUs; what they refuse."""

import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys

import pytest
import record

from user_dir.families import FAMILIES, SIZES
from user_dir.tools.shared.metrics import TOKENISERS

from support import PROJECT, blocks_of, ended, executable, run, training_options

EXAMPLES = PROJECT / "examples"
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
RULE = {"label-smoothing": "0.1", "lr-scheduler": "inverse_sqrt", "warmup-init-lr": "1e-7"}
RULE |= {"adam-betas": r"\(0.9\,\ 0.98\)"}


def bash(*words, env=None, cwd=None):
    env = {"PATH": os.environ["PATH"], **(env or {})}
    return subprocess.run(["bash", *words], env=env, cwd=cwd, capture_output=True, text=True)


def definitions(*names):
    """The definitions of these functions of the recipes."""
    scripts = "".join((EXAMPLES / name).read_text() for name in ("recipe.sh", "shared/steps.sh"))
    return "\n".join(re.findall(rf"^(?:{'|'.join(names)})\(\) .*?^}}", scripts, re.M | re.S))


def plan(recipe, *arguments, ok=True, cwd=None, examples=EXAMPLES, **variables):
    """The output of a recipe with --dry-run, each command in one line; a variable that is None is not set."""
    env = {name: str(value) for name, value in {"GPUS": 1, **variables}.items() if value is not None}
    done = bash(examples / recipe, "--dry-run", *arguments, env=env, cwd=cwd)
    assert (done.returncode == 0) == ok, done.stderr
    return done.stdout.replace(" \\\n   ", "") if ok else done.stderr


def copied(folder):
    """The examples and what they read, in a folder where nobody else writes data/ and runs/."""
    (folder / "user_dir").mkdir()
    shutil.copy(PROJECT / "user_dir/families.py", folder / "user_dir")
    return shutil.copytree(EXAMPLES, folder / "examples")


def steps_of(text):
    return re.findall(r"^\n# (.*)", text, re.MULTILINE)


def option(text, name):
    return re.search(rf"{name} (\S+)", text)[1]


def last_options(text, names):
    """{name: its value where it stands last}, which counts."""
    return {name: re.findall(rf"--{name} ((?:\\.|\S)+)", text)[-1] for name in names}


def test_the_batch_does_not_depend_on_the_processes():
    """As few passes as the memory allows, all of one size."""
    cases = [*itertools.product((4096, 8192, 25000), (1000, 4096, 30000), (1, 2, 3, 4, 7, 8, 16, 64))]
    calls = "".join("share_batch {} {} {}; echo $max_tokens $update_freq\n".format(*case) for case in cases)
    found = bash("-euc", f"{definitions('share_batch')}\n{calls}", env=os.environ).stdout.splitlines()
    for (batch, memory, workers), line in zip(cases, found, strict=True):
        tokens, passes = map(int, line.split())
        assert tokens <= memory and abs(tokens * passes * workers / batch - 1) < 0.02
        assert passes == 1 or (passes - 1) * workers * memory < batch


@pytest.mark.parametrize("recipe, batch", [("wmt14.sh", 25000), ("iwslt14.sh", 4096), ("multi30k.sh", 8192)])
def test_the_batch_is_the_papers(recipe, batch):
    text = plan(recipe, GPUS=2)
    tokens, passes = int(option(text, "--max-tokens")), int(option(text, "--update-freq"))
    assert tokens <= 4096 and abs(tokens * passes * 2 / batch - 1) < 0.02


@pytest.mark.parametrize("recipe, target", [*((recipe, None) for recipe in SETTINGS), ("multi30k_published.sh", "fr")])
def test_the_published_settings(recipe, target):
    expected = {**RULE, **SETTINGS[recipe]}
    text = plan(recipe, TARGET=target)
    assert last_options(text, expected) == expected
    if recipe == "multi30k_published.sh":
        language = target or "de"
        assert f"/data/multi30k-en-{language}\n" in text and f"--target-lang {language} " in text


def test_the_commands_on_the_pages_are_possible():
    """Those of recipes in blocks of their own, planned as they stand there."""
    planned = []
    for page in [*EXAMPLES.glob("*.md"), PROJECT / "README.md", PROJECT / "user_dir/tools/README.md"]:
        text = re.sub(r" *\\\n *", " ", "".join(blocks_of(page)))
        for line in re.findall(r"^(?:[A-Z_]+=(?:\S+|\"[^\"]*\") )*examples/\w+\.sh\b[^#\n]*", text, re.M):
            done = bash("-c", re.sub(r"(MIRROR|TREEBANK)=\S+", r"\1=.", line.rstrip()) + " --dry-run", cwd=PROJECT)
            assert done.returncode == 0 and done.stdout, (page, line, done.stderr)
            planned.append(line)
    assert len(planned) > 20


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("size", "target"), [("base", "de"), ("base", "fr"), ("big", "de"), ("big", "fr")])
def test_the_papers_settings(family, size, target):
    text = plan("wmt14.sh", FAMILY=family, SIZE=size, TARGET=target)
    weighted, relative, big = family.startswith("weighted"), family == "relative_transformer", size == "big"
    assert int(option(text, "--max-update")) == ((60_000, 250_000) if weighted else (100_000, 300_000))[big]
    last = 1 if weighted or relative and not big else (5, 20)[big]
    if last == 1:
        assert f"average_checkpoints {option(text, '--save-dir')}/checkpoint_last.pt --output" in text
    else:
        assert option(text, "--last") == option(text, "--keep-interval-updates") == str(last)
        assert int(option(text, "--max-update")) % int(option(text, "--save-interval-updates")) == 0
    assert option(text, "--arch") == f"{family}_{size}{'_en_fr' if big and target == 'fr' else ''}"
    assert option(text, "--branch-frozen-updates") == "10000"
    dropped = ("0.1", "0.3")[big] if weighted else "0.0"
    assert option(text, "--attention-dropout") == dropped
    assert not weighted or option(text, "--dropout") == dropped  # Vaswani et al. have 0.1 with French in both
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
    assert "/checkpoint_best.pt --output" in text
    loss = plan(recipe, CHOOSE="loss")
    assert "/checkpoint_best.pt --output" in loss and "bleu" not in loss and "--valid-pairs" not in loss
    assert option(text, "--save-dir") != option(loss, "--save-dir")


@pytest.mark.parametrize(
    ("recipe", "variables", "parts"),
    [
        ("wmt14.sh", {"CHOOSE": "ter"}, ["CHOOSE=ter", "loss or bleu"]),
        ("wmt14.sh", {"VALID_PAIRS": "half"}, ["VALID_PAIRS is half", "whole number"]),
        ("wmt14.sh", {"FAMILY": "transformers"}, ["FAMILY=transformers", "vaswani_transformer"]),
        ("wmt14.sh", {"SIZE": "huge"}, ["SIZE=huge", "base or big"]),
        ("wmt14.sh", {"TARGET": "ru"}, ["TARGET=ru", "de or fr"]),
        ("wmt14.sh", {"GPUS": "two"}, ["GPUS is two", "whole number"]),
        ("wmt14.sh", {"GPUS": 400}, ["GPUS=400", "BATCH=25000", "63 tokens at a time to each of 400 processes"]),
        ("wmt14.sh", {"GPUS": 0, "PROCESSES": 0}, ["PROCESSES is 0", "at least 1"]),
        ("wmt14.sh", {"GPUS": 4, "PROCESSES": 2}, ["PROCESSES is 2 and GPUS 4", "GPUS=0"]),
        ("wmt14.sh", {"GPUS": 2, "MASTER_PORT": "first:29500"}, ["MASTER_PORT is first:29500", "whole number"]),
        ("wmt14.sh", {"STEPS": "prepare trian"}, ["STEPS=prepare trian", "trian", "prepare, train"]),
        ("quickstart.sh", {"FAMILY": "transformer"}, ["transformer_tiny is fairseq's own"]),
        ("quickstart.sh", {"SEED": "first"}, ["SEED is first", "whole number"]),
        ("quickstart.sh", {"UPDATES": "many"}, ["UPDATES is many, and has to be a whole number of at least 1"]),
        ("quickstart.sh", {"OUTPUT": "runs/a:b"}, ["OUTPUT=runs/a:b", "no colon"]),
        ("multi30k.sh", {"OUTPUT": "runs/a:b"}, ["OUTPUT=runs/a:b", "no colon"]),
        ("multi30k.sh", {"CHOOSE": "loss", "AVERAGE": 5}, ["AVERAGE=5", "CHOOSE=loss one checkpoint"]),
        ("multi30k.sh", {"SIZE": "big"}, ["SIZE=big has no effect"]),
        ("multi30k.sh", {"ARCH": "relative_transformer_tiny"}, ["ARCH=relative_transformer_tiny has no effect"]),
        ("ted.sh", {"TARGET": "gl"}, ["SOURCE=gl TARGET=gl", "en for the other"]),
        ("wmt14.sh", {"SOURCE": "de"}, ["SOURCE=de has no effect"]),
        ("quickstart.sh", {"MIRROR": "/no/where"}, ["MIRROR=/no/where", "no such folder"]),
        ("g2p.sh", {"AVERAGE": 5}, ["AVERAGE=5", "best checkpoint alone"]),
        ("sequences.sh", {"AVERAGE": 2}, ["AVERAGE=2", "last checkpoint alone"]),
        ("multi30k_published.sh", {"TARGET": "en"}, ["SOURCE and TARGET are both en"]),
        ("wmt14.sh", {"UPDATES": 0}, ["UPDATES is 0", "at least 1"]),
        ("iwslt14.sh", {"NODES": 2, "NODE_RANK": 2}, ["NODE_RANK is 2", "counted from 0"]),
        ("iwslt14.sh", {"MIRROR": "/no/where"}, ["MIRROR=/no/where", "no such folder"]),
        ("quickstart.sh", {"MINUTES": "7,5"}, ["MINUTES is 7,5", "number above 0, such as 7 or 0.5"]),
        ("quickstart.sh", {"MINUTES": "0.0"}, ["MINUTES is 0.0", "above 0"]),
        ("g2p.sh", {"SOURCE": "en"}, ["SOURCE=en", "fre, hun and kor"]),
        ("g2p.sh", {"GPUS": 0, "PROCESSES": 3}, ["3 processes", "divides 400"]),
        ("g2p.sh", {"MAX_TOKENS": 1000}, ["20 passes", "omit MAX_TOKENS"]),
        ("parsing.sh", {"SIZE": "huge"}, ["SIZE=huge", "tiny, base and big"]),
        ("parsing.sh", {"TREEBANK": "/no/where"}, ["TREEBANK=/no/where", "no such folder"]),
        ("parsing.sh", {"TREEBANK": __file__}, ["no such folder"]),
        ("parsing.sh", {"PARSED": "/tmp"}, ["PARSED", "TREEBANK=FOLDER"]),
        ("parsing.sh", {"TREEBANK": "/tmp", "SIZE": "big"}, ["SIZE=big", "PARSED=FOLDER"]),
        ("parsing.sh", {"TREEBANK": "/tmp", "PARSED": "/tmp", "SIZE": "base"}, ["SIZE=base", "SIZE=big"]),
        ("parsing.sh", {"SIZE": "base"}, ["SIZE=base needs a treebank", "TREEBANK=FOLDER"]),
        ("parsing.sh", {"TREEBANK": "/tmp", "SIZE": "tiny"}, ["SIZE=tiny is for the sample"]),
        ("parsing.sh", {"MIRROR": "/tmp"}, ["MIRROR=/tmp", "TREEBANK=FOLDER"]),
        (
            "multi30k.sh",
            {"typed": "--restore-file x"},
            ["--restore-file: fairseq would do so whenever", "--continue-once"],
        ),
        ("multi30k.sh", {"typed": "--reset-optimizer"}, ["--reset-optimizer: fairseq would do so whenever"]),
        ("multi30k.sh", {"typed": "--no-save"}, ["--no-save: a run that is interrupted could not continue; omit it"]),
        ("multi30k.sh", {"typed": "--save-async"}, ["--save-async: fairseq needs iopath for it"]),
        ("multi30k.sh", {"typed": "--save-dir x"}, ["--save-dir: name the folder of the run with OUTPUT="]),
        ("multi30k.sh", {"typed": "--save-dir=x"}, ["--save-dir=x: name the folder of the run with OUTPUT="]),
        ("multi30k.sh", {"typed": "--log-format json"}, ["--log-format: omit it"]),
        ("multi30k.sh", {"typed": "--log-format=json"}, ["--log-format=json: omit it"]),
        ("multi30k.sh", {"typed": "--arch relative_transformer_tiny"}, ["FAMILY="]),
        ("quickstart.sh", {"typed": "--arch=relative_transformer_tiny"}, ["ARCH="]),
        ("multi30k.sh", {"typed": "--seed=3"}, ["SEED="]),
        ("wmt14.sh", {"typed": "--autocast fp16"}, ["--autocast takes bf16 or off"]),
        ("wmt14.sh", {"typed": "--autocast=fp16"}, ["--autocast takes bf16 or off"]),
        ("wmt14.sh", {"typed": "--autocast"}, ["--autocast takes bf16 or off"]),
        ("wmt14.sh", {"typed": "--max-update"}, ["--max-update needs a number"]),
        ("quickstart.sh", {"BATCH": 500}, ["BATCH=500 has no effect"]),
        ("quickstart.sh", {"SIZE": "base"}, ["SIZE=base has no effect"]),
        ("quickstart.sh", {"PROCESSES": 2}, ["PROCESSES=2 has no effect"]),
        ("multi30k.sh", {"VALIDATE": 100}, ["VALIDATE=100 has no effect"]),
        ("sequences.sh", {"BATCH": 1000}, ["BATCH=1000 has no effect"]),
        ("multi30k.sh", {"typed": "--update-freq 4"}, ["--update-freq: use BATCH="]),
        ("multi30k.sh", {"typed": "--max-tokens=4"}, ["--max-tokens=4: use BATCH="]),
        ("wmt14.sh", {"typed": "--max-epoch 4"}, ["--max-epoch: use UPDATES="]),
        ("g2p.sh", {"typed": "--max-sentences 9"}, ["--max-sentences: an update has 400 pairs"]),
        ("wmt14.sh", {"updates": 7}, ["a variable updates", "unset updates"]),
        ("g2p.sh", {"shape": "wide"}, ["a variable shape", "unset shape"]),
        ("wmt14.sh", {"NODES": 2}, ["NODES=2", "add MASTER_ADDR="]),
        ("quickstart.sh", {"FAMILY": "bogus"}, ["there is no architecture bogus_tiny: the families are"]),
        ("quickstart.sh", {"ARCH": "vaswani_transformer_hug"}, ["architecture vaswani_transformer_hug: the families"]),
    ],
)
def test_bad_variables_and_arguments_are_one_line(recipe, variables, parts):
    typed = (variables := dict(variables)).pop("typed", "").split()
    message = plan(recipe, *typed, ok=False, **variables)
    assert message.startswith(f"{recipe}: ") and message.count("\n") == 1
    for part in parts:
        assert part in message


def test_numbers_with_leading_zeros_are_decimal():
    for recipe in ("quickstart.sh", "multi30k.sh"):
        text = plan(recipe, UPDATES="0900", GPUS="08")
        assert option(text, "--max-update") == "900" and option(text, "--branch-frozen-updates") == "150"


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
    assert last_options(text, expected) == expected
    assert f"python examples/g2p.py prepare {tmp_path} kor\n" in text and "moses" not in text
    assert "/checkpoint_best.pt --output" in text
    assert option(plan("g2p.sh", GPUS=0, PROCESSES=2), "--batch-size") == "200"


def test_talks(tmp_path):
    """Their tokens stay; fairseq's own model is the one that the course used."""
    text = plan("ted.sh", SOURCE="az", MERGES="1000", FAMILY="transformer", MIRROR=tmp_path)
    assert "prepare.py ted --source-lang az --target-lang en --output data/ted.az-en.1000 " in text
    expected = {**IWSLT14, "max-update": "20000", "patience": "10", "bpe-operations": "1000", "beam": "5", "last": "5"}
    assert last_options(text, expected) == expected and "--share-all-embeddings" in text
    assert "--pretokenised" in text and "moses" not in text
    assert " --max-ratio 100 --pretokenised --bpe-operations 8000\n" in plan("multilingual.sh")
    assert "--arch transformer_iwslt_de_en " in text and "--target-lang en" in text.rpartition("tools.score")[2]


def test_sequences(tmp_path):
    """The settings of Ontañón et al. 2022; only SCAN is read from somewhere."""
    text = plan("sequences.sh", TASK="scan_jump", MIRROR=tmp_path)
    expected = {"batch-size": "64", "warmup-updates": "4000", "lr": "2e-3", "label-smoothing": "0", "beam": "1"}
    expected |= {"encoder-layers": "2", "decoder-embed-dim": "64", "encoder-ffn-embed-dim": "256"}
    assert last_options(text, expected) == expected
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
        assert f" --train {tmp_path}/02 {tmp_path}/03 " in text and f" --valid {tmp_path}/22 --test" in text
        assert shape in text and "--beam 21 --lenpen 0.3 --max-len-a 1 --max-len-b 300" in text
        assert option(text, "--dropout") == str(dropout) and option(text, "--bpe-operations") == str(merges)
        assert float(option(text, "--lr")) == pytest.approx(0.5 * 1024**-0.5 * warmup**-0.5, rel=5e-3)
        assert option(text, "--warmup-updates") == str(warmup) and "--lenpen-form vaswani" in text
        assert ("--attention-dropout 0.2" in text) == (size == "base")
        assert family == "transformer" or option(text, "--arch") == f"{family}_{size}"
        assert "moses" not in text and "--share" not in text and steps_of(text)[-1] == "to compare with"


def test_parsing_with_more_trees_and_with_the_sample(tmp_path):
    more = executable(tmp_path / "more", "")
    assert f"/20 {tmp_path}/21 {more} " in plan("parsing.sh", TREEBANK=tmp_path, PARSED="more", cwd=tmp_path)
    sample = plan("parsing.sh", SMOKE=1)
    assert "sample_treebank.py data/sample_trees\n" in sample and "--train data/sample_trees/train.mrg " in sample
    assert sample.index("--encoder-layers 2") < sample.index("--encoder-layers 1")  # the last word counts
    assert "--max-pairs 1000" in sample and "--gold data/sample_trees.words-brackets.smoke/raw/test.brackets" in sample


TWO_HOSTS = {"NODES": 2, "MASTER_ADDR": "host1"}


@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        ({"GPUS": 1}, 1),
        ({"GPUS": 1, **TWO_HOSTS}, 1),
        ({"GPUS": 4, **TWO_HOSTS}, 4),
        ({"GPUS": None, "CUDA_VISIBLE_DEVICES": "5"}, 1),
        ({"GPUS": None, "CUDA_VISIBLE_DEVICES": "0,2,GPU-1f"}, 3),
        ({"GPUS": None, "CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"GPUS": None, "CUDA_VISIBLE_DEVICES": "-1"}, 0),
        ({"GPUS": 0, **TWO_HOSTS}, 0),
        ({"GPUS": 0, "PROCESSES": 3, **TWO_HOSTS}, 0),
    ],
)
def test_fairseq_takes_as_many_processes_as_asked(variables, gpus, monkeypatch):
    """On a host with eight GPUs, in the environment that torchrun makes for the last of the processes."""
    from fairseq.dataclass.configs import DistributedTrainingConfig
    from fairseq.distributed import utils

    text = plan("wmt14.sh", **variables)
    processes, nodes = variables.get("PROCESSES", gpus or 1), variables.get("NODES", 1)
    workers = processes * nodes
    assert f": {workers} x " in text and option(text, "--distributed-world-size") == str(workers)
    for word in ("--cpu", "MALLOC_ARENA_MAX=1", "export CUDA_VISIBLE_DEVICES=\n"):
        assert (word in text) == (gpus == 0)
    assert ("torchrun" in text) == (workers > 1)
    if gpus == 0 and processes > 1:  # they share the cores
        assert f" OMP_NUM_THREADS={max(1, len(os.sched_getaffinity(0)) // processes)} " in text
    if workers > 1:
        assert f"--nnodes {nodes} --node-rank 0 --nproc-per-node {processes} " in text
        made = {"MASTER_ADDR": "host1", "MASTER_PORT": 1, "WORLD_SIZE": workers, "RANK": workers - 1}
        for name, value in made.items():
            monkeypatch.setenv(name, str(value))
    given = re.search(r"--distributed-init-method (\S+)", text)
    cfg = DistributedTrainingConfig(
        distributed_world_size=workers,
        distributed_init_method=given and given[1],
        distributed_no_spawn="--distributed-no-spawn" in text,
    )
    cfg.tpu = False
    monkeypatch.setattr(utils.torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(utils.torch.cuda, "set_device", lambda device: None)
    utils.infer_init_method(cfg)
    assert cfg.distributed_world_size == workers
    assert cfg.distributed_init_method == (None if workers == 1 else "env://")
    assert cfg.distributed_no_spawn == (workers > 1)
    assert gpus == 0 or cfg.distributed_rank == workers - 1


def test_runs_on_one_host_do_not_meet_at_one_port():
    ports = {option(plan("wmt14.sh", GPUS=2, SEED=seed), "--master-port") for seed in range(1, 6)}
    assert len(ports) == 5 and all(20000 <= int(port) < 32000 for port in ports)
    # Hosts may name folders differently.
    assert option(plan("wmt14.sh", GPUS=2, **TWO_HOSTS), "--master-port") == "29500"


def test_a_plan_is_readable_and_can_be_pasted(tmp_path):
    """Every word arrives as it was given, and no line is longer than a hundred columns unless one word is."""
    odd = ["--user-dir", "a 'b' \"c\" $d \\ *", "--empty", "", "--last"]
    env = {"GPUS": "2", "OUTPUT": f"{tmp_path}/a run", "STEPS": "train"}
    functions, _, train = bash(EXAMPLES / "multi30k.sh", "--dry-run", *odd, env=env).stdout.partition("# train\n")
    train = train.partition("\n# to compare with")[0]
    assert all(len(line) <= 100 or line.count(" ") <= 7 for line in train.splitlines())
    executable(tmp_path / "torchrun", "printf '%s\\n' \"$@\"")
    python = 'python() { case "$2" in *precision) echo off ;; *) cat ;; esac; }'
    env["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    (tmp_path / "a run").mkdir()
    (tmp_path / "a run/train.log").write_text("earlier\n")  # of a training that continues
    pasted = bash("-c", f"{python}\n{functions}\n{train}", env=env, cwd=tmp_path)
    words = pasted.stdout.splitlines()
    assert words[-7:] == [*odd, "--autocast", "off"] and words[words.index("--save-dir") + 1] == f"{tmp_path}/a run"
    assert (tmp_path / "a run/train.log").read_text() == f"earlier\n{pasted.stdout}"


def test_a_setting_that_is_missing_is_named(tmp_path):
    examples = copied(tmp_path)
    recipe = (examples / "multi30k.sh").read_text()
    for name in ("corpus", "preparation", "training", "batch", "rate", "warmup", "checkpoints", "generation"):
        without = re.sub(rf"\b{name}=(\([^)]*\)|\S+)", "", recipe)
        assert without != recipe
        (examples / "mine.sh").write_text(without)
        message = plan("mine.sh", examples=examples, ok=False)
        assert message == f"mine.sh: the recipe does not set {name}; see the list in examples/shared/steps.sh\n"


def test_a_family_that_is_added_needs_no_shell(tmp_path):
    examples = copied(tmp_path)
    table = tmp_path / "user_dir/families.py"
    row = 'FAMILIES["new_transformer"] = Family({}, big={}, updates=(12, 34), averaged=(5, 6))\n'
    table.write_text(table.read_text().replace("def main", f"{row}def main"))
    text = plan("wmt14.sh", FAMILY="new_transformer", SIZE="big", examples=examples)
    assert option(text, "--max-update") == "34" and option(text, "--last") == "6"
    message = plan("wmt14.sh", FAMILY="other", examples=examples, ok=False)
    assert message.startswith("wmt14.sh: FAMILY=other") and ", new_transformer, transformer, and the" in message
    python = 'python() { [ "$1" = -m ] || command python "$@"; }\n'  # no comparison at the end
    (examples / "install/environment.sh").write_text(f"project={tmp_path}\n{python}")
    (examples / "quickstart.sh").write_text("#!/bin/sh\necho $ARCH\n")
    done = bash(examples / "compare.sh", env={"SEEDS": "1 2"})
    trained = [line for line in done.stdout.splitlines() if not line.startswith("# ====")]
    assert trained == [f"{family}_tiny" for family in (*FAMILIES, "new_transformer") for _ in range(2)]


@pytest.mark.parametrize("gpus", ["0", "1"])
def test_the_quickstart_trains_on_cpus_if_asked(gpus):
    assert ("--cpu " in plan("quickstart.sh", GPUS=gpus)) == (gpus == "0")


def test_the_quickstart_is_a_recipe(tmp_path):
    examples = copied(tmp_path)
    variables = {"MINUTES": 0.6, "UPDATES": 30, "FAMILY": "relative_transformer"}
    text = plan("quickstart.sh", "--seed", "7", examples=examples, **variables)
    assert steps_of(text) == ["prepare", "train", "average", "translate", "draw", "score", "record"]
    assert option(text, "--stop-time-hours") == "0.01" and option(text, "--log-interval") == "7"
    assert option(text, "--last") == "4" and "--seed 7\n" in text and "--arch relative_transformer_tiny " in text
    assert "--disable-validation" in text
    text = plan("quickstart.sh", "--distributed-world-size", "2", examples=examples, VALIDATE=40)
    assert "--disable-validation" not in text and option(text, "--save-interval-updates") == "40"
    assert text.count("--beam 4 --lenpen 1 --max-len-a 1 --max-len-b 50") == 2
    few = plan("quickstart.sh", examples=examples, PAIRS=300)  # not in place of the whole corpus
    assert "--output data/tatoeba.fr-en.300 " in few and "--max-pairs 300\n" in few
    assert re.findall(r"--distributed-world-size (\d)", text) == ["1", "2"]  # the last word counts
    assert not (tmp_path / "runs").exists() and not (tmp_path / "data").exists()


def test_own_text_is_trained_by_hand_as_in_the_quickstart():
    """The page's command; what it does not name has its default."""
    page = (EXAMPLES / "own-data.md").read_text(encoding="utf-8").replace("\\\n", " ")
    page = re.search(r"^fairseq-train (data/mine.*)", page, re.MULTILINE)[1]
    quickstart = re.search(r" fairseq-train (.*)", plan("quickstart.sh").replace("\\\n", " "))[1]
    by_hand, recipes = (vars(training_options(*shlex.split(words))) for words in (page, quickstart))
    differ = {name for name in by_hand.keys() | recipes.keys() if by_hand.get(name) != recipes.get(name)}
    # fairseq's default of --distributed-world-size is the number of GPUs.
    assert differ - {"distributed_world_size"} == {"data", "save_dir", "stop_time_hours"}


def test_what_follows_the_recipe_wins():
    text = plan("wmt14.sh", "--log-interval", "7", "--autocast", "off", "--lr", "1")
    train = text.partition("# train")[2].partition("# average")[0]
    assert train.rindex("--log-interval 7") > train.rindex("--max-tokens")
    assert train.rindex("--lr 1") > train.index("--lr 6.99e-4")
    assert "--autocast off" in train and "in_precision" not in train
    assert re.search(r"^choose_precision runs/\S+/precision off$", train, re.MULTILINE)


def test_translations_of_text_with_nul(tmp_path):
    (tmp_path / "log").write_bytes(b"S-1\ta\0b\nD-1\t-1\tsecond\nD-0\t-1\tfirst\n")
    done = bash("-euc", f"{definitions('write_translations')}\nwrite_translations log out", cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "out").read_text() == "first\nsecond\n"


@pytest.mark.parametrize("typed", [["--max-update", "1200"], ["--max-update=1200"]])
def test_a_number_of_updates_changes_what_depends_on_it(typed):
    for recipe in ("wmt14.sh", "quickstart.sh"):
        assert (text := plan(recipe, *typed)) == plan(recipe, UPDATES=1200)
        # Two more than the five that are averaged; fairseq saves none where an epoch ends.
        assert recipe != "wmt14.sh" or option(text, "--save-interval-updates") == "171"


@pytest.mark.parametrize("recipe", ["wmt14.sh", "quickstart.sh", "multilingual.sh"])
def test_a_mirror_may_be_given_from_where_one_stands(recipe, tmp_path):
    commands = re.findall("^python data-prep/prepare.py .*", plan(recipe, MIRROR=".", cwd=tmp_path), re.MULTILINE)
    for command in commands:
        assert (f"--mirror {tmp_path}" in command) == ("--train " not in command)
    assert commands


def test_a_reader_that_goes_away_ends_a_plan():
    command = f"set -o pipefail; {EXAMPLES}/wmt14.sh --dry-run | grep -m 1 '^# prepare'"
    done = bash("-c", command, env={"GPUS": "1"})
    assert done.stdout == "# prepare\n" and done.stderr == ""


def test_the_batch_on_the_page():
    plans = [plan("wmt14.sh", GPUS=gpus) for gpus in (1, 8)]
    found = [option(text, name) for text in plans for name in ("--max-tokens", "--update-freq")]
    page = " ".join((EXAMPLES / "README.md").read_text(encoding="utf-8").split())
    assert "{} and {} on one GPU, {} and {} on eight".format(*found) in page


def test_other_hosts_only_train():
    text = plan("wmt14.sh", NODES=2, NODE_RANK=1, GPUS=8, MASTER_ADDR="first", MASTER_PORT=1234)
    assert steps_of(text) == ["train", "to compare with"]
    assert "--node-rank 1" in text and "--master-addr first --master-port 1234" in text and "train.1.log" in text


def test_slurm(tmp_path):
    """The sbatch file runs the recipe's steps, training once on each host."""
    executable(tmp_path / "scontrol", "printf 'host7\\nhost8\\n'")
    each = 'for SLURM_NODEID in 0 1; do export SLURM_NODEID; "$@"; done'
    executable(tmp_path / "srun", f'echo "srun $1 $2"\nshift 2\n{each}')
    env = {"SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "4", "SLURM_JOB_NODELIST": "host[7-8]"}
    env |= {"SLURM_JOB_ID": "5", "SLURM_CPUS_PER_TASK": "12"}
    env |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "FAMILY": "weighted_transformer"}
    done = bash(EXAMPLES / "slurm.sbatch", EXAMPLES / "wmt14.sh", "--dry-run", env=env)
    assert done.returncode == 0, done.stderr
    steps = [step for step in steps_of(done.stdout) if step != "to compare with"]
    assert steps == ["prepare", "train", "train", "average", "translate", "score", "record"]
    assert "\nsrun --kill-on-bad-exit=1 --cpus-per-task=12\n" in done.stdout
    assert re.findall(r"--node-rank (\d)", done.stdout) == ["0", "1"]
    assert done.stdout.count("--master-addr host7") == done.stdout.count("--master-port 20005") == 2
    assert "--max-tokens 3125" in done.stdout


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
    for pairs, (arch, epochs, batch, settings) in sizes.items():
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
    joint = os.path.relpath(tmp_path / "joint", PROJECT)  # the steps run there, whatever the folder of the call
    assert "--share-all-embeddings " in started(*texts, "--dry-run", cwd=tmp_path, PREPARATION=f"--like {joint}").stdout
    texts[1] = texts[1].rename(tmp_path / "mine.zh_CN")
    text = started(*texts, "--dry-run", CHOOSE="bleu").stdout
    assert "--eval-tokenized-bleu" in text and "--eval-bleu-detok" not in text
    texts[1] = texts[1].rename(tmp_path / "mine.pt_BR")
    folders = set()
    for place, preparation in (("a", ""), ("b", ""), ("b", "--lowercase")):  # a model's data are not replaced
        (tmp_path / place).mkdir(exist_ok=True)
        for text in texts:
            (tmp_path / place / text.name).write_text(f"{place}\n")
        named = [f"{place}/{text.name}" for text in texts]
        done = started(*named, "--dry-run", cwd=tmp_path, PREPARATION=preparation)
        folders.add(re.search(r"--output \\?\s*(data/own.mine.fr-pt_BR\S+)", done.stdout)[1])
        assert f"\ncd {PROJECT}\n" in done.stdout  # the command after it names the run from there
    assert len(folders) == 3
    for content in ("one\n", "another\n"):  # of a file that the preparation reads
        (tmp_path / "test.fr").write_text(content)
        done = started(*texts, "--dry-run", PREPARATION=f"--test {tmp_path}/test.fr {texts[1]}")
        folders.add(re.search(r"--output \\?\s*(data/own.mine.fr-pt_BR\S+)", done.stdout)[1])
    assert len(folders) == 5
    many = started(*texts, "--dry-run", PAIRS="100000").stdout  # to continue a model of so many pairs
    assert "vaswani_transformer_iwslt_de_en" in many and "--encoder-normalize-before" not in many
    wrong = started(*texts, "--dry-run", PAIRS="1e5")
    assert wrong.returncode == 1 and wrong.stderr == "own-data.sh: PAIRS is 1e5: give a whole number\n"
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
        assert first["signature"].startswith("BLEU|nrefs:1|case:mixed|eff:no|tok:none|")
        kept, missing = tmp_path / "kept.txt", f"score_languages {target} {tmp_path}/missing {translations} gl az"
        failed = bash("-euo", "pipefail", "-c", f"{functions}\nshow_and_keep {kept} {missing}")
        assert failed.returncode and not kept.exists()
    assert "choose en or mul" in plan("multilingual.sh", TARGET="de", ok=False)


def test_a_table_of_another_corpus_has_its_reference():
    env = {"RECIPE": "wmt14", "ROWS": "k-1", "TARGET": "fr", "SMOKE": "1"}
    text = bash(EXAMPLES / "ablations.sh", "shaw-distance", "--dry-run", env=env).stdout
    assert text.rstrip().endswith("--reference data/wmt14.en-fr.smoke/raw/test.fr")
    assert "fairseq-train data/wmt14.en-fr.smoke/data-bin" in text


def test_rows_of_the_papers_corpus():
    """Each with its size, its options and its seed."""
    env = {"RECIPE": "wmt14", "ROWS": "big D.smoothing-0", "SEEDS": "2", "GPUS": "1"}
    text = bash(EXAMPLES / "ablations.sh", "vaswani", "--dry-run", env=env).stdout.replace(" \\\n   ", "")
    rows = text.split("# ==== ")[1:4]
    assert [row.partition(",")[0] for row in rows] == ["base", "D.smoothing-0", "big"]
    names = ("arch", "seed", "label-smoothing")
    assert [(*last_options(row, names).values(),) for row in rows] == [
        ("vaswani_transformer_base", "2", "0.1"),
        ("vaswani_transformer_base", "2", "0.0"),
        ("vaswani_transformer_big", "2", "0.1"),
    ]


def test_the_plan_of_a_comparison(tmp_path):
    """It needs nothing that is installed, and ends in the commands that compare."""
    variables = {"FAMILIES": "vaswani_transformer relative_transformer", "SEEDS": "1 2", "MIRROR": "."}
    text = plan("compare.sh", cwd=tmp_path, **variables)
    assert text.count("fairseq-train data/tatoeba.fr-en/data-bin") == text.count(f"--mirror {tmp_path}\n") == 4
    assert text.splitlines()[-1].startswith("python -m user_dir.tools.compare --system vaswani_transformer ")
    done = bash(EXAMPLES / "ablations.sh", "convergence", "--dry-run")
    assert done.stdout.splitlines()[-1].startswith("python -m user_dir.tools.plot_training ")
    assert "--save-interval-updates 50 " in done.stdout.replace(" \\\n   ", "") and "--disable-val" not in done.stdout


def test_a_comparison_that_cannot_end_does_not_begin():
    message = plan("compare.sh", FAMILIES="relative_transformer", ok=False)
    assert message.startswith("ablations.sh: ") and "nothing to compare" in message and message.count("\n") == 1
    assert "bogus_tiny: the families are vas" in plan("compare.sh", FAMILIES="relative_transformer bogus", ok=False)
    assert "vaswani_transformer_hug: the families are" in plan("compare.sh", SIZE="hug", ok=False)
    assert "SEEDS is 'one 2', and has to be numbers" in plan("compare.sh", SEEDS="one 2", ok=False)
    assert "SEEDS is '1 2 1', and names 1 twice" in plan("compare.sh", SEEDS="1 2 1", ok=False)
    assert "SEEDS is '1 01', and has to be numbers" in plan("compare.sh", SEEDS="1 01", ok=False)
    assert "k-1_tiny: the families are vas" in plan("compare.sh", ROWS="k-1", ok=False)
    twice = "vaswani_transformer relative_transformer vaswani_transformer"
    assert "names vaswani_transformer twice" in plan("compare.sh", FAMILIES=twice, ok=False)
    assert "--seed and SEED: use SEEDS=" in plan("compare.sh", "--seed", "5", ok=False)
    assert "--seed and SEED: use SEEDS=" in plan("compare.sh", SEED=5, ok=False)
    assert "in compare.sh FAMILIES=" in plan("compare.sh", FAMILY="relative_transformer", ok=False)


def test_slurms_script_is_for_slurm():
    done = bash(EXAMPLES / "slurm.sbatch", "examples/wmt14.sh")
    assert done.returncode == 1 and "sbatch examples/slurm.sbatch examples/wmt14.sh" in done.stderr


def test_two_recipes_may_fetch_a_repository_at_once(tmp_path):
    run = {"check": True, "cwd": tmp_path, "capture_output": True}
    (tmp_path / "there").mkdir()
    git = ["git", "-C", "there", "--git-dir=.git"]  # none that a hook names in GIT_DIR
    subprocess.run([*git, "init", "-q"], **run)
    identity = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"]
    subprocess.run([*git, *identity, "commit", "-q", "--allow-empty", "-m", "x"], **run)
    defined = definitions("lock", "make_once")
    one = f"make_once {tmp_path}/here git clone --depth 1 file://{tmp_path}/there"
    done = bash("-euc", f"{defined}\n{one} & first=$!; {one} & wait $!; wait $first", env=os.environ, cwd=PROJECT)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "here.lock", "there"]
    assert [path.name for path in (tmp_path / "here").iterdir()] == [".git"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_step_that_has_handled_ctrl_c_ends_a_loop_of_the_shell():
    words = [sys.executable, EXAMPLES / "shared/supervise.py", "bash", "-c", "exit 130"]
    assert subprocess.run(words).returncode == -signal.SIGINT


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_what_does_not_hear_sigterm_is_killed():
    script = "import supervise; supervise.SECONDS = 0.5; supervise.main()"
    deaf = "(trap '' TERM; echo $BASHPID; while :; do sleep 0.1; done) & sleep 0.3"
    words = [sys.executable, "-c", script, "bash", "-c", deaf]
    with subprocess.Popen(words, cwd=EXAMPLES / "shared", stdout=subprocess.PIPE, text=True) as supervised:
        process = int(supervised.stdout.readline())
        assert supervised.wait() == 0
        alive = not ended(process)
        if alive:
            os.kill(process, signal.SIGKILL)
    assert not alive


@pytest.mark.parametrize(
    "recipe, option, words",
    [
        ("quickstart.sh", "--help", ["From nothing to a scored translation", "MINUTES=7"]),
        ("quickstart.sh", "-h", ["From nothing to a scored translation"]),
        ("own-data.sh", "--help", ["Two text files of your own", "PATIENCE=10"]),
        ("ablations.sh", "--help", ["Trains the rows of one of the papers' tables", "RECIPE=quickstart"]),
        ("compare.sh", "--help", ["Trains several families", "FAMILIES=(all)"]),
        ("recipe.sh", "--help", ["Sourced by ", "FAMILY=vaswani_transformer"]),
    ],
)
def test_help_is_the_comment_at_the_top(tmp_path, recipe, option, words):
    done = bash(EXAMPLES / recipe, option, env={"OUTPUT": str(tmp_path / "run")})
    assert done.returncode == 0 and done.stdout.startswith(words[0]) and words[-1] in done.stdout
    assert "set -e" not in done.stdout and done.stdout.count(words[0]) == 1 and not (tmp_path / "run").exists()


def test_settings_of_a_users_shell(tmp_path):
    """With CDPATH `cd` prints a folder, and with noclobber `>` refuses a file that is there."""
    (tmp_path / "settings").write_text("set -o noclobber\n")
    settings = {"CDPATH": ".:/tmp", "BASH_ENV": str(tmp_path / "settings"), "PYTHONSAFEPATH": "1"}
    for recipe in ("quickstart.sh", "multi30k.sh"):
        env = {"GPUS": "0"}
        plain, other = (bash(f"examples/{recipe}", "--dry-run", env=e, cwd=PROJECT) for e in (env, env | settings))
        assert other.returncode == 0 and other.stdout == plain.stdout
    script = f". {EXAMPLES}/shared/supervised.sh; echo x > settings; echo ${{PYTHONSAFEPATH-none}}"
    done = bash("-c", script, "x", "--dry-run", env=settings, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "none\n"), done.stderr


@pytest.mark.parametrize(
    "script", sorted([*EXAMPLES.rglob("*.sh"), *EXAMPLES.rglob("*.sbatch")]), ids=lambda path: path.name
)
def test_lines_are_as_short_as_those_of_python(script):
    assert not [line for line in script.read_text(encoding="utf-8").splitlines() if len(line) > 120]


@pytest.mark.parametrize("script", ["run.sh", "gpu.sh", "versions.sh"])
def test_help_of_the_tests_installs_nothing(tmp_path, script):
    done = bash(PROJECT / "tests" / script, "--help", env={"PATH": os.defpath}, cwd=tmp_path)
    assert done.returncode == 0 and f"tests/{script}" in done.stdout
    assert done.stderr == "" and not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "script", ["examples/g2p.py", "examples/sequences.py", "examples/record.py", "data-prep/sample_treebank.py"]
)
def test_help_of_scripts_is_no_error(script):
    asked = subprocess.run([sys.executable, PROJECT / script, "--help"], capture_output=True, text=True)
    assert asked.returncode == 0 and script.rpartition("/")[2] in asked.stdout and asked.stderr == ""
    wrong = subprocess.run([sys.executable, PROJECT / script, "--wrong"], capture_output=True, text=True)
    assert wrong.returncode == 1 and wrong.stderr == asked.stdout and wrong.stdout == ""
