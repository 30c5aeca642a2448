"""train.py on tiny trainings: it leaves records, skips what has one, ends all that it started, and goes on."""

import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

from user_dir.families import FAMILIES

from support import PYTHON, ended, environment, run, wait_for

TABLE = """
[group]
plan = ""
scores = ["BLEU of tokens"]
[[group.rows]]
recipe = "wrapped.sh"
families = ["vaswani_transformer", "transformer"]
seeds = [1]
variables = { UPDATES = "4", AVERAGE = "1", SMOKE = "1" }
mirror = "{FAMILY}"
arguments = "--num-workers 0"
"""
# The first time it waits with a process in the background, as a recipe does with its training.
WRAPPED = """#!/usr/bin/env bash
if [ ! -e "$OUTPUT/begun" ]; then sleep 500 & echo $! > "$OUTPUT/begun"; wait; fi
. "$(dirname "$0")/multi30k_published.sh"
"""


@pytest.fixture
def trainings(checkout, mirror, tmp_path):
    (checkout / "examples/trainings.toml").write_text(TABLE)
    (checkout / "examples/wrapped.sh").write_text(WRAPPED)
    shutil.rmtree(checkout / "runs", ignore_errors=True)  # another test's, as its records
    for record in checkout.glob("examples/results/group*"):
        record.unlink()
    for family in ("vaswani_transformer", "transformer"):
        (tmp_path / family).symlink_to(mirror)
    words = [sys.executable, checkout / "examples/train.py", "group", "--mirror", tmp_path]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return lambda **variables: subprocess.Popen(words, env=environment(**variables), **pipes)


def test_ended_resumed_recorded_and_skipped(checkout, trainings):
    runs, results = checkout / "runs/trainings", checkout / "examples/results"
    names = ["group.vaswani_transformer.1", "group.transformer.1"]
    begun = [runs / name / "begun" for name in names]
    with trainings() as runner:
        wait_for(lambda: all(file.exists() and file.read_text() for file in begun), runner)
        for file in begun:
            with open(f"/proc/{file.read_text().strip()}/stat") as stat:
                assert stat.read().rpartition(")")[2].split()[16] == "19"  # nice
            group = pathlib.Path(f"/proc/{file.read_text().strip()}/autogroup")
            if os.geteuid() == 0 and group.exists():  # Linux limits how often other users may set it
                assert group.read_text().endswith(" nice 19\n")
        runner.send_signal(signal.SIGHUP)
        assert runner.wait() == 129
    assert all(ended(int(file.read_text())) for file in begun) and not [*results.glob("group*")]

    with trainings(STAND_INS=PYTHON.stand_ins()) as runner:
        said = runner.communicate()[0]
        assert runner.returncode == 0, said + "".join(file.read_text()[-3000:] for file in runs.glob("*.log"))
    for name in names:
        record = json.loads((results / f"{name}.json").read_text())
        assert record["seed"] == 1 and record["updates"] == 4 and record["starts"] == 1
        assert "max_update: 4" in record["ended"] and record["validation"][-1]["update"] == 4
        assert record["parameters"] > 0 and record["peak_memory_gb"] > 0.05
        assert len(record["corpus"]["sha256"]) == 64 and "SMOKE=1" in record["command"]
        assert record["scores"]["BLEU of tokens"]["signature"].startswith("BLEU|")
        assert "beam=1" in record["scores"]["BLEU4 of fairseq-generate"]["signature"]
        own = name == "group.transformer.1"
        assert ("--optimizer adam " in record["options"]) == own and (record["precision"] == "off" or not own)

    with trainings() as runner:
        assert "2 of 2 trainings have a record" in runner.communicate()[0] and runner.returncode == 0

    with trainings(BATCH="100") as runner:
        assert "BATCH=100: it would change what is trained" in runner.communicate()[0] and runner.returncode == 2


def test_trainings_of_one_gpu_each_are_spread(checkout, trainings):
    """They find the commands of this Python, and install nothing."""
    script = "echo sees $CUDA_VISIBLE_DEVICES $INSTALL ${PATH%%:*}; sleep 1; exit 1\n"
    (checkout / "examples/wrapped.sh").write_text(script)
    with trainings(GPUS="1", CUDA_VISIBLE_DEVICES="3,5", INSTALL="", PATH=os.defpath) as runner:
        assert "2 of 2 trainings failed" in runner.communicate()[0]
    expected = {f"sees {gpu} no {pathlib.Path(sys.executable).parent}\n" for gpu in (3, 5)}
    assert {log.read_text() for log in checkout.glob("runs/trainings/*.log")} == expected


@pytest.mark.slow
@pytest.mark.parametrize("family", [*FAMILIES, "transformer"])
def test_letters_to_sounds_with_every_family(checkout, tmp_path, family):
    words = ["".join(letters) for letters in itertools.product("abc", repeat=4)]
    table = "".join(f"{word}\t{' '.join(word)}\n" for word in words)
    for part in ("train", "dev", "test"):
        (tmp_path / f"fre.{part}.tsv").write_text(table)
    theirs = "".join(f"{' '.join(word)}\t{' '.join(word)}\n" for word in words)
    (tmp_path / "fre.test.published-output.tsv").write_text(theirs)
    env = {"SMOKE": 1, "GPUS": 0, "SOURCE": "fre", "MIRROR": tmp_path, "OUTPUT": tmp_path / "run", "FAMILY": family}
    run("bash", checkout / "examples/g2p.sh", "--num-workers", "0", cwd=checkout, env=env)
    score = (tmp_path / "run/score.txt").read_text()
    assert "| 0.00 | 0 better, " in score and "sign test: `exact" in score
