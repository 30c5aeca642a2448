"""Work that forked processes share: results in order, their errors, and the end of one that is killed."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from user_dir.errors import InputError
from user_dir.serving.forked import forked

from support import ended, wait_for

LEFT_ALONE = """
import os, signal, sys, time, types
sys.modules["torch"] = types.SimpleNamespace(set_num_threads=lambda number: None)  # takes seconds to import
from user_dir.serving.forked import forked

def work(seconds):
    print(os.getpid(), flush=True)
    time.sleep(seconds)

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as commands have it
list(forked(work, [60], 1))
"""


def test_results_in_order():
    torch.ones(300, 300) @ torch.ones(300, 300)  # with threads, which a child does not have

    def work(number):
        product = torch.full((300, 300), float(number)) @ torch.ones(300, 300)
        return product[0, 0].item(), torch.get_num_threads(), os.getpid()

    sums, threads, processes = zip(*forked(work, range(5), 2))
    assert sums == (0, 300, 600, 900, 1200) and {*threads} == {1}
    assert os.getpid() not in processes and len({*processes}) <= 2


def test_two_work_at_a_time():
    both = multiprocessing.get_context("fork").Barrier(2)
    assert sorted(forked(lambda _: both.wait(20), [0, 1], 2)) == [0, 1]


def test_an_error_is_raised_here_and_ends_the_others():
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        list(forked(lambda seconds: time.sleep(seconds) or 1 / seconds, [0.1, 0, 30], 2))
    assert time.monotonic() - began < 20


def test_a_process_that_is_killed_is_one_line():
    with pytest.raises(InputError, match="one of the 2 processes was killed"):
        list(forked(lambda number: os.kill(os.getpid(), signal.SIGKILL), [1, 2], 2))


@pytest.fixture
def left_alone():
    """A process that waits for one that it has forked, and the latter's number."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    first = subprocess.Popen([sys.executable, "-c", LEFT_ALONE], start_new_session=True, **pipes)
    child = int(first.stdout.readline())
    yield first, child
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)


def test_none_is_left_when_the_first_is_killed(left_alone):
    first, child = left_alone
    first.kill()
    first.communicate()
    wait_for(lambda: ended(child), seconds=10)


def test_ctrl_c_ends_all(left_alone):
    """At once, and no other traceback is printed."""
    first, child = left_alone
    os.killpg(first.pid, signal.SIGINT)
    errors = first.communicate(timeout=20)[1]
    assert errors.count("Traceback") == 1 and errors.endswith("KeyboardInterrupt\n")
    wait_for(lambda: ended(child), seconds=10)


@pytest.mark.parametrize("to, status", [("first", 143), ("child", 1)])
def test_sigterm_ends_all(left_alone, to, status):
    """A child does not do as a command does, which it is a copy of."""
    first, child = left_alone
    os.kill(first.pid if to == "first" else child, signal.SIGTERM)
    first.communicate(timeout=20)
    assert first.returncode == status
    wait_for(lambda: ended(child), seconds=10)
