"""Variables and options that recipes refuse, in one line."""

import re

import pytest
from record import VARIABLES
from unit.examples.support import EXAMPLES, option, plan


@pytest.mark.parametrize(
    ("recipe", "variables", "parts"),
    [
        ("wmt14.sh", {"CHOOSE": "ter"}, ["CHOOSE=ter", "loss or bleu"]),
        ("wmt14.sh", {"VALID_PAIRS": "half"}, ["VALID_PAIRS is half", "whole number"]),
        ("wmt14.sh", {"FAMILY": "transformers"}, ["FAMILY=transformers", "vaswani_transformer"]),
        ("wmt14.sh", {"SIZE": "huge"}, ["SIZE=huge", "base or big"]),
        ("wmt14.sh", {"TARGET": "ru"}, ["TARGET=ru", "de or fr"]),
        ("wmt14.sh", {"GPUS": "two"}, ["GPUS is two", "whole number"]),
        ("wmt14.sh", {"SMOKE": "no"}, ["SMOKE is no", "whole number"]),
        ("wmt14.sh", {"GPUS": 400}, ["GPUS=400", "BATCH=25000", "63 tokens at a time to each of 400 processes"]),
        ("wmt14.sh", {"GPUS": 0, "PROCESSES": 0}, ["PROCESSES is 0", "at least 1"]),
        ("wmt14.sh", {"GPUS": 4, "PROCESSES": 2}, ["PROCESSES is 2 and GPUS 4", "GPUS=0"]),
        ("wmt14.sh", {"GPUS": 2, "MASTER_PORT": "first:29500"}, ["MASTER_PORT is first:29500", "whole number"]),
        ("wmt14.sh", {"STEPS": "prepare trian"}, ["STEPS=prepare trian", "trian", "prepare, train"]),
        ("multi30k.sh", {"PYTHON": "/no/python3"}, ["there is no /no/python3", "PYTHON=/path"]),
        ("quickstart.sh", {"PYTHON": "/no/python3"}, ["there is no /no/python3", "PYTHON=/path"]),
        ("quickstart.sh", {"FAMILY": "transformer"}, ["transformer_tiny is fairseq's own"]),
        ("quickstart.sh", {"CORPUS": "multi30k", "SOURCE": "de"}, ["CORPUS=multi30k", "choose tatoeba or bible"]),
        ("quickstart.sh", {"GPUS": 4}, ["GPUS=4: one GPU is used", "--distributed-world-size 4"]),
        ("quickstart.sh", {"SEED": "first"}, ["SEED is first", "whole number"]),
        ("quickstart.sh", {"UPDATES": "many"}, ["UPDATES is many, and has to be a whole number of at least 1"]),
        ("quickstart.sh", {"OUTPUT": "runs/a:b"}, ["OUTPUT=runs/a:b", "no colon"]),
        ("multi30k.sh", {"OUTPUT": "runs/a:b"}, ["OUTPUT=runs/a:b", "no colon"]),
        ("multi30k.sh", {"CHOOSE": "loss", "AVERAGE": 5}, ["AVERAGE=5", "CHOOSE=loss one checkpoint"]),
        ("multi30k.sh", {"SIZE": "big"}, ["SIZE=big has no effect"]),
        ("multi30k.sh", {"ARCH": "relative_transformer_tiny"}, ["ARCH=relative_transformer_tiny has no effect"]),
        ("ted.sh", {"TARGET": "gl"}, ["SOURCE=gl TARGET=gl", "en for the other"]),
        ("ted.sh", {"MERGES": "few"}, ["MERGES is few, and has to be a whole number of at least 1"]),
        ("multilingual.sh", {"MERGES": 0}, ["MERGES is 0, and has to be a whole number of at least 1"]),
        ("wmt14.sh", {"SOURCE": "de"}, ["SOURCE=de has no effect"]),
        ("quickstart.sh", {"MIRROR": "/no/where"}, ["MIRROR=/no/where", "no such folder"]),
        ("g2p.sh", {"AVERAGE": 5}, ["AVERAGE=5", "best checkpoint alone"]),
        ("sequences.sh", {"AVERAGE": 2}, ["AVERAGE=2", "last checkpoint alone"]),
        ("multi30k_published.sh", {"TARGET": "en"}, ["SOURCE and TARGET are both en"]),
        ("wmt14.sh", {"UPDATES": 0}, ["UPDATES is 0", "at least 1"]),
        ("iwslt14.sh", {"NODES": 2, "NODE_RANK": 2}, ["NODE_RANK is 2", "counted from 0"]),
        ("ablations.sh", {"MIRROR": "/no/where", "typed": "vaswani"}, ["MIRROR=/no/where", "no such folder"]),
        ("iwslt14.sh", {"MIRROR": "/no/where"}, ["MIRROR=/no/where", "no such folder"]),
        ("quickstart.sh", {"MINUTES": "7,5"}, ["MINUTES is 7,5", "number above 0, such as 7 or 0.5"]),
        ("quickstart.sh", {"MINUTES": "0.0"}, ["MINUTES is 0.0", "above 0"]),
        ("g2p.sh", {"SOURCE": "en"}, ["SOURCE=en", "fre, hun and kor"]),
        ("g2p.sh", {"SOURCE": "../en", "MIRROR": "/tmp"}, ["SOURCE=../en", "in lower case"]),
        ("g2p.sh", {"GPUS": 0, "PROCESSES": 3}, ["3 processes", "divides 400"]),
        ("g2p.sh", {"GPUS": 3}, ["3 processes", "choose GPUS and NODES whose product divides 400"]),
        ("g2p.sh", {"MAX_TOKENS": 1000}, ["20 passes", "omit MAX_TOKENS"]),
        ("parsing.sh", {"SIZE": "huge"}, ["SIZE=huge", "tiny, base and big"]),
        ("parsing.sh", {"CHOOSE": "bleu"}, ["CHOOSE=bleu is for text", "CHOOSE=loss"]),
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
        ("g2p.sh", {"typed": "--disable-validation"}, ["--disable-validation: the best checkpoint translates"]),
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
        ("multi30k.sh", {"SEEDS": "1 2 3"}, ["SEEDS=1 2 3 has no effect"]),
        ("quickstart.sh", {"FAMILIES": "relative_transformer"}, ["FAMILIES=relative_transformer has no effect"]),
        ("sequences.sh", {"BATCH": 1000}, ["BATCH=1000 has no effect"]),
        ("multi30k.sh", {"typed": "--update-freq 4"}, ["--update-freq: use BATCH="]),
        ("multi30k.sh", {"typed": "--max-tokens=4"}, ["--max-tokens=4: use BATCH="]),
        ("wmt14.sh", {"typed": "--max-epoch 4"}, ["--max-epoch: use UPDATES="]),
        ("g2p.sh", {"typed": "--max-sentences 9"}, ["--max-sentences: an update has 400 pairs"]),
        ("wmt14.sh", {"updates": 7}, ["a variable updates", "unset updates"]),
        ("g2p.sh", {"shape": "wide"}, ["a variable shape", "unset shape"]),
        ("wmt14.sh", {"NODES": 2}, ["NODES=2", "add MASTER_ADDR="]),
        ("multi30k.sh", {"typed": "--keep-last-epochs 3"}, ["--keep-last-epochs: AVERAGE says how many"]),
        ("wmt14.sh", {"typed": "--keep-interval-updates 3"}, ["--keep-interval-updates: AVERAGE says how many"]),
        ("multi30k.sh", {"typed": "--distributed-world-size 2"}, ["--distributed-world-size: use GPUS="]),
        ("quickstart.sh", {"ARCH": "a_tiny", "FAMILY": "b"}, ["ARCH=a_tiny and FAMILY=b: both name the model"]),
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


@pytest.mark.parametrize("recipe", ["recipe.sh", "quickstart.sh"])
def test_a_variable_that_is_not_explained_is_refused(recipe):
    """It is another recipe's, and would have no effect."""
    text = (EXAMPLES / recipe).read_text(encoding="utf-8")
    explained = re.findall(r"\b([A-Z_]+)=", re.match(r"(#.*\n)+", text)[0])
    refused = re.search(r"^have_no_effect ((?:.*\\\n)*.*)", text, re.MULTILINE)[1]
    assert {*VARIABLES} <= {"OMP_NUM_THREADS", *explained, *re.findall(r"[A-Z_]+", refused)}


def test_numbers_with_leading_zeros_are_decimal():
    for recipe, gpus in (("quickstart.sh", "01"), ("multi30k.sh", "08")):
        text = plan(recipe, UPDATES="0900", GPUS=gpus)
        assert option(text, "--max-update") == "900" and option(text, "--branch-frozen-updates") == "150"


def test_a_comparison_that_cannot_end_does_not_begin():
    message = plan("compare.sh", FAMILIES="relative_transformer", ok=False)
    assert message.startswith("ablations.sh: ") and "nothing to compare" in message and message.count("\n") == 1
    fairseqs = plan("compare.sh", FAMILIES="vaswani_transformer transformer", ok=False)
    assert "ROWS or FAMILIES names transformer" in fairseqs and fairseqs.count("\n") == 1
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
