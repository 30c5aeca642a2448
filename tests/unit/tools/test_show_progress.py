"""show_progress shortens fairseq's lines, and shows them as they come, until nobody reads them."""

import io
import os
import shlex
import subprocess
import sys

import pytest

from user_dir.tools import show_progress

from support import PROJECT, run

HEADER = "2026-11-21 07:22:59 | INFO | "
TRAINING = (
    "train_inner | epoch 001:     50 / 1042 loss=10.748, nll_loss=10.514, ppl=1461.8, wps=9745.7, ups=6, wpb=1630.9, "
    "bsz=161.4, num_updates=50, lr=0.0005, gnorm=nan, clip=56, train_wall=18, wall=20"
)
VALIDATION = (
    "valid | epoch 001 | valid on 'valid' subset | loss 7.613 | nll_loss 6.877 | ppl 117.52 "
    "| wps 11740.7 | wpb 1412.1 | bsz 157.1 | num_updates 100"
)
CONFIGURATION = "{'optimization': {'_name': None, 'max_epoch': 0, 'max_update': %d, 'stop_time_hours': 0.0}}"
COMMAND = [sys.executable, "-m", "user_dir.tools.show_progress"]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (HEADER + TRAINING, "update 50 of 2400: loss 10.748, perplexity 1461.8, 9745.7 words/s, 20 s"),
        (TRAINING.replace("wps=9745.7", "wps=0"), "update 50 of 2400: loss 10.748, perplexity 1461.8, 0 words/s, 20 s"),
        (HEADER + VALIDATION, "update 100 of 2400: valid loss 7.613, perplexity 117.52"),
        (VALIDATION + " | bleu 12.5", "update 100 of 2400: valid loss 7.613, perplexity 117.52, BLEU 12.5"),
        (
            '{"epoch": 1, "update": 0.1, "loss": "8.5", "ppl": "30.25", "wps": "12", "num_updates": "99", "wall": "7"}',
            "update 99 of 2400: loss 8.5, perplexity 30.25, 12 words/s, 7 s",
        ),
        (TRAINING.replace("ppl=1461.8, ", ""), "update 50 of 2400: loss 10.748, 9745.7 words/s, 20 s"),
        (HEADER + "train | epoch 001 | loss 9.1 | ppl 200.1 | num_updates 1042 | wall 300", None),
        (HEADER + "fairseq_cli.train | task: TranslationTask", None),
        ('{"epoch": 1, "update": 0.1, "loss": "8.', None),
    ],
)
def test_lines(line, shown):
    assert show_progress.progress(line, 2400) == shown


@pytest.mark.parametrize("beginning", ["", CONFIGURATION % 0 + "\n"])
def test_without_the_number_of_updates(beginning, monkeypatch, printed):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{beginning}{HEADER}{VALIDATION}\n".encode())))
    assert printed(show_progress.main) == "update 100: valid loss 7.613, perplexity 117.52\n"


def test_a_closed_input(monkeypatch, refusal):
    monkeypatch.setattr(sys, "stdin", None)
    refusal(show_progress.main, match="the standard input is closed: pipe fairseq-train's output into")


def test_a_line_is_shown_as_it_comes():
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}  # some locales pass bytes on that are no UTF-8
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(COMMAND, cwd=PROJECT, env=strict, **pipes) as shower:
        shower.stdin.write(f"{CONFIGURATION % 20}\n{CONFIGURATION % 2400}\n".encode())  # it was continued with more
        for update in (50, 100):
            shower.stdin.write(b"\xff no UTF-8\n" + TRAINING.replace("=50,", f"={update},").encode() + b"\n")
            shower.stdin.flush()
            assert shower.stdout.readline().startswith(b"update %d of 2400: loss 10.748, " % update)  # before any more
        rest, _ = shower.communicate((HEADER + VALIDATION).encode())
    assert rest == b"update 100 of 2400: valid loss 7.613, perplexity 117.52\n" and shower.returncode == 0


def test_who_reads_may_go_away():
    python = shlex.quote(sys.executable)
    command = f"set -o pipefail; echo '{TRAINING}' | {python} -m user_dir.tools.show_progress | true"
    gone = run("bash", "-c", command, ok=False)
    assert gone.stderr == "" and gone.returncode == 141
