"""Small faults, made one at a time, and the test that must notice each: python tests/mutants.py [WORD ...]

mutants.toml lists for each file a part of its text, what stands there instead, and the test. Everything is done in a
copy of the checkout, by copies of one process that has imported torch and fairseq: a second or two each. WORD selects
the mutants whose file or test contains it. Ends with the number of those that were noticed, and with status 1 if one
was not. Without node those of page.html are not noticed: their tests are skipped.
"""

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from typing import NamedTuple

PROJECT = pathlib.Path(__file__).resolve().parents[1]
SECONDS = 300  # for one test; a fault that makes it endless is noticed


class Mutant(NamedTuple):
    file: str
    line: str  # a part of a line that is there once
    instead: str
    test: str


def read_mutants(words: list[str]) -> list[Mutant]:
    by_file = tomllib.loads(pathlib.Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    rows = ((file, *row) for file, faults in by_file.items() for row in faults)
    found = [Mutant(file, line, instead, f"tests/{test}") for file, line, instead, test in rows]
    return [one for one in found if not words or any(word in one.file or word in one.test for word in words)]


def copy_checkout(folder: pathlib.Path) -> None:
    """The files that git tracks, or would, as they are now."""
    listed = ["git", "-C", str(PROJECT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    for name in filter(None, subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0")):
        if (PROJECT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, folder / name)


def run_tests(folder: pathlib.Path, tests: list[str], seconds: int = 0) -> int:
    """pytest's exit status in a copy of this process; 1 also where time was over (0: there is no limit)."""
    child = os.fork()
    if child == 0:
        signal.alarm(seconds)
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        import pytest

        options = ["-c", "tests/pytest.ini", "--rootdir", ".", "-x", "-q", "-p", "no:cacheprovider", "-m", ""]
        os._exit(int(pytest.main([*options, *tests])))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return 1 if status == -signal.SIGALRM else status


def noticed(folder: pathlib.Path, mutant: Mutant) -> bool:
    """Whether the mutant's test fails.

    Raises:
        ValueError: if the line is not there once, or the test cannot be run
    """
    file = folder / mutant.file
    text = file.read_text(encoding="utf-8")
    if text.count(mutant.line) != 1:
        raise ValueError(f"{mutant.file} has {mutant.line!r} {text.count(mutant.line)} times and not once")
    file.write_text(text.replace(mutant.line, mutant.instead), encoding="utf-8")
    try:
        status = run_tests(folder, [mutant.test], SECONDS)
    finally:
        file.write_text(text, encoding="utf-8")
    if status not in (0, 1):
        raise ValueError(f"{mutant.test} does not run with {mutant.instead!r} in {mutant.file} (pytest: {status})")
    return status == 1


def main(words: list[str]) -> None:
    if not (mutants := read_mutants(words)):  # pytest would run all tests
        sys.exit(f"mutants.py: no mutant's file or test has {' or '.join(words)} in its name")
    os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    sys.dont_write_bytecode = True  # a file that changes twice a second would be taken for the one before
    import fairseq  # noqa: F401
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        copy_checkout(folder)
        if run_tests(folder, sorted({mutant.test for mutant in mutants})):
            sys.exit("mutants.py: some of the tests fail without a fault, or there are none")
        alive = []
        for number, mutant in enumerate(mutants, start=1):
            told = noticed(folder, mutant)
            alive += [] if told else [mutant]
            said = "noticed" if told else "NOT NOTICED"
            print(f"{number:3} {said}: {mutant.file}: {mutant.instead.strip()}  [{mutant.test}]", flush=True)
    print(f"{len(mutants) - len(alive)} of {len(mutants)} noticed")
    sys.exit(1 if alive else 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="a part of the name of a file or a test")
    main(parser.parse_args().words)
