"""examples/quickstart.sh itself, on a few hundred pairs of the real corpus and a few updates."""

import os
import re
import sys

import pytest
from support import PROJECT, run


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    """Runs the script in a folder that looks like the project, with this environment active."""
    folder = tmp_path_factory.mktemp("quickstart")
    for name in ("examples", "data-prep", "user_dir", "setup.py", "README.md"):
        (folder / name).symlink_to(PROJECT / name)

    def quickstart(*options, **variables):
        env = {"VIRTUAL_ENV": sys.prefix, "PAIRS": "400", "UPDATES": "100", "OUTPUT": "run", **variables}
        sizes = ["--encoder-layers", "1", "--decoder-layers", "1", "--encoder-embed-dim", "16"]
        return run("bash", folder / "examples/quickstart.sh", *sizes, *options, cwd=folder, env=env, ok=False)

    os.environ.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    return folder, quickstart


def test_quickstart(quickstart):
    folder, run_quickstart = quickstart
    done = run_quickstart()
    if "network" in done.stderr and done.returncode:
        pytest.skip(f"the corpus cannot be fetched here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert len(re.findall(r"^update \d+ of 100: loss", done.stdout, re.MULTILINE)) == 4
    assert len(re.findall(r"^translation  ", done.stdout, re.MULTILINE)) == 10
    assert re.search(r"^BLEU\|.*version:.* = [\d.]+", done.stdout, re.MULTILINE)
    assert len(re.findall(r"^ +\d+ s  ", done.stdout, re.MULTILINE)) == 5
    assert "tatoeba.org" in done.stdout
    translations = (folder / "run/translations.en").read_text().splitlines()
    assert len(translations) == 2000

    again = run_quickstart()
    assert again.returncode == 0 and "run/average.pt is there" in again.stdout
    assert re.search(r"^BLEU\|.*$", again.stdout, re.MULTILINE)[0] == re.search(r"^BLEU\|.*$", done.stdout, re.MULTILINE)[0]

    other = run_quickstart("--seed", "7")
    assert other.returncode == 1
    assert "holds a run with other options" in other.stderr and "OUTPUT=" in other.stderr
