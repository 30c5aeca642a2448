"""setup.py makes a command of every tool: the targets exist, and each command explains itself."""

import argparse
import importlib
import re
import runpy
import shlex
import sys

import pytest
import setuptools

from support import PROJECT, blocks_of

FILES = (PROJECT / "user_dir/tools").glob("*.py")
TOOLS = sorted(path.stem for path in FILES if "@exit_in_one_line" in path.read_text(encoding="utf-8"))


@pytest.fixture
def given(monkeypatch):
    """The arguments that setup.py gives to setuptools."""
    given = {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: given.update(options))
    runpy.run_path(str(PROJECT / "setup.py"))
    return given


def test_every_tool_has_one(given):
    scripts = dict(line.split(" = ") for line in given["entry_points"]["console_scripts"])
    expected = {f"nmt-{tool.replace('_', '-')}": f"user_dir.tools.{tool}:main" for tool in TOOLS}
    assert scripts == expected and len(TOOLS) >= 10
    page = (PROJECT / "user_dir/tools/README.md").read_text(encoding="utf-8")
    assert not [script for script in scripts if f"[{script.removeprefix('nmt-')}](#nmt-" not in page]


def test_every_package_is_installed(given):
    folders = {path.parent.relative_to(PROJECT) for path in (PROJECT / "user_dir").rglob("__init__.py")}
    assert {*given["packages"]} == {".".join(folder.parts) for folder in folders}


def test_every_file_that_is_read_is_installed(given):
    data = given["package_data"].items()
    given = {f"{package.replace('.', '/')}/{name}" for package, names in data for name in names}
    files = (path for path in (PROJECT / "user_dir").rglob("*.*") if path.suffix not in (".py", ".pyc", ".md"))
    assert given == {str(path.relative_to(PROJECT)) for path in files}


def test_every_package_that_is_imported_is_required(given):
    files = (path for folder in ("user_dir", "data-prep") for path in (PROJECT / folder).rglob("*.py"))
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    imported = {*re.findall(r"^ *(?:from (?=\S+ import )|import )(\w+)", text, re.M)} - sys.stdlib_module_names
    required = {re.match(r"[\w-]+", line)[0] for line in given["install_requires"] + given["extras_require"]["dev"]}
    brought = {"fairseq", "numpy", "omegaconf"}  # by fairseq-fixed
    assert imported - brought - {"prepare", "preparation"} <= {name.replace("-", "_") for name in required}


def test_the_versions_that_are_required_are_those_that_are_tried(given):
    (default,) = re.findall(r"@:-(.*)\}", (PROJECT / "tests/versions.sh").read_text(encoding="utf-8"))
    tried = re.findall(r"python3\.(\d+):2\.(\d+)\.", default)
    pythons, torches = ([*map(int, numbers)] for numbers in zip(*tried))
    assert given["python_requires"] == f">=3.{min(pythons)},<3.{max(pythons) + 1}"
    assert f"torch>=2.{min(torches)}" in given["install_requires"]


def test_the_extra_of_developers_has_the_others(given):
    """environment.sh notes these as installed with it."""
    extras = given["extras_require"]
    assert {package for extra in extras.values() for package in extra} == {*extras["dev"]}


def test_the_description_needs_no_other_file(given):
    """A package index shows it without the pages and pictures that the README leads to."""
    targets = re.findall(r"\]\(([^)]*)\)", given["long_description"])
    assert targets and not [target for target in targets if not target.startswith("https://")]
    words = re.findall(r"(?<!!)\[([^]]*)\]\((?!https?:)[^)]*\)", (PROJECT / "README.md").read_text(encoding="utf-8"))
    assert words and not [text for text in words if text not in given["long_description"]]
    assert given["license_expression"] == "MIT"


@pytest.mark.parametrize("tool", TOOLS)
def test_help(tool, capsys, monkeypatch):
    command = f"nmt-{tool.replace('_', '-')}"
    monkeypatch.setattr("sys.argv", [command, "--help"])  # the installed command calls main()
    with pytest.raises(SystemExit) as stop:
        importlib.import_module(f"user_dir.tools.{tool}").main()
    shown = " ".join(capsys.readouterr().out.split())
    assert stop.value.code == 0 and shown.startswith(f"usage: {command} ")
    assert "--output" not in shown or "in place of" in shown
    values = re.findall(r"--([\w-]+) \[?([A-Z_]+)\b", shown)  # what kind of value, and not the option's name again
    repeated = {name for name, value in values if value.lower() == name.replace("-", "_")}
    assert repeated == ({"output"} if tool == "compare" else set())  # its help has OUTPUT.md


class Parsed(Exception):
    """The options were understood."""


def test_the_commands_on_the_pages_have_options_that_there_are(monkeypatch):
    def then_ended(parse):
        def parsed(*arguments):
            parse(*arguments)
            raise Parsed

        return parsed

    for name in ("parse_args", "parse_intermixed_args"):
        monkeypatch.setattr(argparse.ArgumentParser, name, then_ended(getattr(argparse.ArgumentParser, name)))
    pages, seen = [PROJECT / "README.md", PROJECT / "user_dir/tools/README.md", *(PROJECT / "examples").glob("*.md")], 0
    for page in pages:
        text = "".join(blocks_of(page)).replace("\\\n", " ")
        for tool, words in re.findall(r"^(?:.*\| )?nmt-([\w-]+) ([^|&\n]*)", text, re.M):
            main = importlib.import_module(f"user_dir.tools.{tool.replace('-', '_')}").main
            with pytest.raises(Parsed):
                main(shlex.split(words, comments=True))
            seen += 1
    assert seen > 20
