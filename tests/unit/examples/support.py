"""Shared by the tests of recipes: what they would do, and their functions."""

import os
import re
import shutil
import subprocess

from support import PROJECT

EXAMPLES = PROJECT / "examples"


def bash(*words, env=None, cwd=None):
    env = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "", **(env or {})}  # whatever GPUs there are here
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
    return unbroken(done.stdout) if ok else done.stderr


def unbroken(text):
    """The output of a recipe, each command in one line."""
    return text.replace(" \\\n   ", "")


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
