"""Runs Python commands in copies of one process that has imported torch, fairseq and other packages.

Importing them takes some seconds, and the commands of most tests have little else to do. Otherwise a copy (fork) is
like a new process: it has its own folder, environment, streams and exit status, and imports our package itself.
"""

import atexit
import contextlib
import functools
import gc
import importlib.metadata
import json
import logging
import os
import pathlib
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from copy import copy as copy_of

import copied

SECONDS = 1800  # the time limit of a command: 1,000 updates at base size on one core of two
STAND_IN = """#!/bin/sh
exec {folder}/python -SE {script} {address} {folder} "${{0##*/}}" "$@"
"""


class Server:
    """The process; it starts when it is needed."""

    def __init__(self):
        self.process, self.starting = None, threading.Lock()

    def stand_ins(self) -> pathlib.Path:
        """A folder for PATH: its python, fairseq-train and so on run in copies."""
        with self.starting:
            if self.process is None:
                self.start()
        return self.folder

    def start(self) -> None:
        self.kept = tempfile.TemporaryDirectory()
        self.folder, address = pathlib.Path(self.kept.name), f"{self.kept.name}/socket"
        real = pathlib.Path(sys.executable).parent
        paths = {"folder": real, "script": copied.__file__, "address": address}
        text = STAND_IN.format(**{name: shlex.quote(str(path)) for name, path in paths.items()})
        for name in ("python", *(path.name for path in real.iterdir() if copied.forwarded(path.name))):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)
        command = [sys.executable, "-W", "ignore", __file__, address]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes)
        atexit.register(self.process.stdin.close)  # which ends it
        assert self.process.stdout.readline() == b"ready\n"


def function_of(words: list[str]):
    """The function that a command calls which is `forwarded`, and its sys.argv."""
    name, *rest = words
    if name != "python":
        script, *_ = importlib.metadata.entry_points(group="console_scripts", name=name)
        return lambda: script.load()(), words
    if rest[0] == "-m":
        return lambda: runpy.run_module(rest[1], run_name="__main__", alter_sys=True), words[2:]
    return lambda: runpy.run_path(rest[0], run_name="__main__"), rest


def remember_overrides() -> None:
    """Makes hydra read each option of fairseq's, 260 in a command, once, and not copy its store for each command.

    That is a third of a short command. It returns copies, as its store does (ConfigStore.load).
    """
    from hydra._internal.config_repository import CachingConfigRepository
    from hydra.core.override_parser.overrides_parser import OverridesParser

    def start(self, delegate):
        self.delegate, self.cache = copy_of(delegate), {}

    read = functools.cache(functools.partial(OverridesParser.parse_rule, OverridesParser.create()))
    OverridesParser.parse_rule = lambda self, *rule: copy_of(read(*rule))
    CachingConfigRepository.__init__ = start


def serve(address: str) -> None:
    """Answers each request with the exit status of its copy, until the process that started this one ends."""
    gc.disable()  # else it looks through all that is imported again and again
    import matplotlib.pyplot  # noqa: F401, I001  (after fairseq it would log how it finds its fonts)
    import fairseq_cli.generate  # noqa: F401
    import fairseq_cli.hydra_train  # noqa: F401
    import fairseq_cli.train  # noqa: F401
    import requests  # noqa: F401
    import sacrebleu.metrics  # noqa: F401
    import sacremoses  # noqa: F401
    import subword_nmt.learn_bpe  # noqa: F401
    import torch._dynamo  # noqa: F401  (by each training's optimizer: a second and a half)
    from fairseq.dataclass.utils import override_module_args
    from fairseq.options import get_training_parser, parse_args_and_arch
    from hydra.core.override_parser.overrides_parser import OverridesParser

    remember_overrides()
    usual = parse_args_and_arch(get_training_parser(), ["data", "--arch", "transformer"])
    OverridesParser.create().parse_overrides(override_module_args(usual)[0])
    gc.freeze()  # for the copies
    gc.enable()
    # Also where the environment forbids it: else each copy compiles our package.
    sys.pycache_prefix, sys.dont_write_bytecode = f"{os.path.dirname(address)}/compiled", False

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that answer
        print("ready", flush=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        while listening in select.select([listening, sys.stdin], [], [])[0]:
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                answer(connection)
                os._exit(0)
            connection.close()


def answer(connection: socket.socket) -> None:
    _, streams, *_ = socket.recv_fds(connection, 1, 3)
    request = json.loads(connection.makefile().read())
    child = os.fork()
    if child == 0:
        connection.close()
        os._exit(copy(streams=streams, **request))
    connection.sendall(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def copy(words: list[str], cwd: str, env: dict[str, str], streams: list[int]) -> int:
    """Runs the command; returns its exit status."""
    signal.alarm(SECONDS)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    if words[0] in ("fairseq-train", "fairseq-hydra-train"):  # which configure the log when they are imported
        logging.root.handlers.clear()
        for name in ("fairseq_cli.train", "fairseq_cli.hydra_train"):
            del sys.modules[name]
    function, sys.argv = function_of(words)
    script = sys.executable if words[0] != "python" else words[1]
    sys.path[0] = cwd if script == "-m" else os.path.dirname(os.path.abspath(script))
    sys.path[1:1] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    status = 0
    try:
        function()
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else stop.code is not None
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    with contextlib.suppress(Exception):
        threading._shutdown()
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return int(status)


if __name__ == "__main__":
    serve(sys.argv[1])
