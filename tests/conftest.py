"""Shared by the tests: small models of any architecture, and fairseq's commands on small data."""

import argparse
import functools
import gc
import logging
import os
import signal
import sys
import threading
import types

import pytest
import torch
from commands import function_of, remember_overrides
from fairseq.data import Dictionary
from record import VARIABLES

from user_dir.task import CheckedTranslationConfig, CheckedTranslationTask

from support import EOS, PAD, SMALL, build_model, run, save_checkpoint, write_toy_data

gc.disable()  # while the tests are collected: two seconds of ten
remember_overrides()

# No GPU, and nothing that the shell exports for recipes; bash complains of a locale that is not installed. Git has no
# hooks and signatures of the user, and Python no colours.
for name in {*VARIABLES, "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"} - {"OMP_NUM_THREADS"}:
    os.environ.pop(name, None)
os.environ |= {"CUDA_VISIBLE_DEVICES": "", "LC_ALL": "C.UTF-8", "GIT_CONFIG_GLOBAL": "/dev/null", "PYTHON_COLORS": "0"}

# Commands that tests end take these signals as at a terminal, also where the tests run under nohup or behind &.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def dictionary():
    dictionary = Dictionary()
    for word in range(46):
        dictionary.add_symbol(f"w{word}")
    return dictionary


@pytest.fixture(scope="session")
def build(dictionary):
    """build(arch, **options): see support.build_model."""
    task = types.SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    return functools.partial(build_model, task)


@pytest.fixture(scope="session")
def new_task(dictionary):
    """new_task(**options): a checked_translation."""
    return lambda **options: CheckedTranslationTask(CheckedTranslationConfig(**options), dictionary, dictionary)


@pytest.fixture
def saved(build, dictionary, tmp_path):
    """saved(arch, **options): an untrained model, its checkpoint as fairseq writes it, and a folder of dictionaries."""

    def saved(arch, updates=100, name="checkpoint.pt", **options):
        model, data = build(arch, **options), tmp_path / "data-bin"
        data.mkdir(exist_ok=True)
        for language in ("src", "tgt"):
            dictionary.save(str(data / f"dict.{language}.txt"))
        given = argparse.Namespace(arch=arch, _name=arch, **{**SMALL, **options})
        save_checkpoint(tmp_path / name, model, given, "elsewhere", ("src", "tgt"), updates)
        return model, tmp_path / name, data

    return saved


@pytest.fixture
def batch():
    """Source padded on the left, target on the right, as by fairseq: src_tokens [5, 9], prev_output_tokens [5, 7]."""
    torch.manual_seed(2)
    source, target = torch.randint(4, 50, (5, 9)), torch.randint(4, 50, (5, 7))
    source[1, :4] = source[3, :1] = PAD
    target[2, 5:] = target[4, 3:] = PAD
    target[:, 0] = source[:, -1] = EOS
    return {"src_tokens": source, "src_lengths": source.ne(PAD).sum(1), "prev_output_tokens": target}


@pytest.fixture(scope="session")
def command():
    return run


@pytest.fixture
def call(monkeypatch, capsys, caplog):
    """call(command, …): what a command of fairseq's or ours prints and logs, in this process, which is faster.

    One that fails raises. `ok` is not read: helpers that take `command` give it.
    """
    for logger in ("", "fairseq"):
        caplog.set_level(logging.INFO, logger=logger)

    def call(*words, ok=True):
        function, arguments = function_of([*map(str, words)])
        monkeypatch.setattr(sys, "argv", arguments)
        caplog.clear()
        function()
        return capsys.readouterr().out + "\n".join(caplog.messages)

    return call


@pytest.fixture(scope="session")
def toy_data(tmp_path_factory):
    """toy_data(target=…, …): see support.write_toy_data."""
    return lambda **options: write_toy_data(tmp_path_factory.mktemp("toy"), **options)


@pytest.fixture(scope="session")
def copies(toy_data):
    """A data-bin whose targets are its sources."""
    return toy_data()
