"""The table of families: it is read by any Python, and what it prints is what the shell reads."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from user_dir import families

FILE = Path(families.__file__)


def printed(*arguments, ok=True):
    command = [sys.executable, "-I", "-S", FILE, *arguments]  # without installed packages
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode == 0) == ok
    return done.stdout if ok else done.stderr


def test_it_is_read_by_an_old_python():
    nodes = list(ast.walk(ast.parse(FILE.read_text(encoding="utf-8"), feature_version=(3, 6))))
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert modules == {"sys", "typing"}
    builtins = {node.value.id for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)}
    assert not builtins & {"dict", "list", "tuple"}  # before Python 3.9 not as list[str]


def test_names():
    assert printed().split() == list(families.FAMILIES)


# Written down from the papers a second time: updates, checkpoints averaged, dropout of attention weights, base and big.
# Vaswani et al. 2017, 5.2 and 6.1; Shaw et al. 2018, 4.1; Ahmed et al. 2017, 4 and 4.1.
TRAINED = {
    "vaswani_transformer": ("100000 5 0.0", "300000 20 0.0"),
    "relative_transformer": ("100000 1 0.0", "300000 20 0.0"),
    "weighted_transformer": ("60000 1 0.1", "250000 1 0.3"),
    "weighted_relative_transformer": ("60000 1 0.1", "250000 1 0.3"),
}


@pytest.mark.parametrize("name", families.FAMILIES)
def test_what_its_paper_trains(name):
    for sizes, expected in zip((("tiny", "base"), ("big", "big_en_fr")), TRAINED[name]):
        assert {printed(f"{name}_{size}") for size in sizes} == {f"{expected}\n"}
    family = families.FAMILIES[name]
    assert family.big.keys() <= family.options.keys()  # big models are of the same family
    updates = ", ".join(f"{number:,}" for number in family.updates)
    averaged = ", ".join("none" if number == 1 else str(number) for number in family.averaged)
    page = (FILE.parents[1] / "examples/wmt14.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| .*`{name}`.* \| {updates} \| {averaged} \|$", page, re.M)


def test_fairseqs_own_is_trained_as_the_plain_one(capsys):
    """And so is a family that does not say how."""
    assert printed("transformer_big") == printed("vaswani_transformer_big")
    families.main(["transformer_base"])  # in this size relative models are trained otherwise
    assert capsys.readouterr().out == f"{TRAINED['vaswani_transformer'][0]}\n"
    assert families.Family({}) == families.FAMILIES["vaswani_transformer"]


@pytest.mark.parametrize("name", ["transformers_base", "vaswani_transformer", "vaswani_transformer_hug", ""])
def test_another_name_is_one_line(name):
    known = f"the families are {', '.join(families.FAMILIES)}, transformer, and the sizes {', '.join(families.SIZES)}"
    assert printed(name, ok=False) == f"{name}: {known}\n"
