"""Runs Python commands in copies of one process that has imported torch and fairseq.

Importing them takes some seconds, and the commands of most tests have little else to do. Otherwise a copy (fork) is
like a new process: it has its own folder, environment, output and exit status, and imports our package itself.
"""

import atexit
import contextlib
import importlib.metadata
import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
import threading

SECONDS = 1800  # the time limit of a command: 1,000 updates at base size on one core of two


class Server:
    """Starts the process with the first command, and sends it one command after the other."""

    def __init__(self):
        self.process, self.busy = None, threading.Lock()

    def run(self, words: list[str], cwd, env: dict[str, str]) -> subprocess.CompletedProcess | None:
        """The finished command; None if the process cannot run it, or is running another thread's command."""
        if function_of(words) is None or not self.busy.acquire(blocking=False):
            return None
        try:
            return self.finished(words, cwd, env)
        finally:
            self.busy.release()

    def finished(self, words: list[str], cwd, env: dict[str, str]) -> subprocess.CompletedProcess:
        if self.process is None:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self.process = subprocess.Popen([sys.executable, "-W", "ignore", __file__], env=env, **pipes)
            atexit.register(self.process.stdin.close)
        with tempfile.TemporaryDirectory() as folder:
            request = {"words": words, "cwd": str(cwd), "env": env, "folder": folder}
            print(json.dumps(request), file=self.process.stdin, flush=True)
            status = int(self.process.stdout.readline())
            texts = [(pathlib.Path(folder) / name).read_text() for name in ("stdout", "stderr")]
        return subprocess.CompletedProcess(words, status, *texts)


def function_of(words: list[str]):
    """The function that a command of this environment's Python calls, and its sys.argv; None for other commands."""
    name, *rest = words
    if name == "python" and rest[:1] == ["-m"]:
        return lambda: runpy.run_module(rest[1], run_name="__main__", alter_sys=True), words[2:]
    scripts = importlib.metadata.entry_points(group="console_scripts", name=name)
    if name.startswith(("fairseq-", "nmt-")) and scripts:
        return lambda: next(iter(scripts)).load()(), words
    return None


def serve() -> None:
    """Reads requests, one per line; answers each with the exit status of its copy."""
    import fairseq_cli.generate  # noqa: F401
    import fairseq_cli.hydra_train  # noqa: F401
    import fairseq_cli.train  # noqa: F401

    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for line in requests:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            requests.close()
            answers.close()
            os._exit(copy(**request))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)


def copy(words: list[str], cwd: str, env: dict[str, str], folder: str) -> int:
    """Runs the command; returns its exit status."""
    signal.alarm(SECONDS)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(pathlib.Path(folder) / name, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    function, sys.argv = function_of(words)
    sys.path[0] = cwd if words[0] == "python" else str(pathlib.Path(sys.executable).parent)
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
    serve()
