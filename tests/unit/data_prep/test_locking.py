"""A lock is waited for, and does not survive its process."""

import errno
import fcntl
import os
import pathlib
import signal
import subprocess
import sys
from unittest import mock

import pytest
from preparation import locking
from preparation.locking import locked
from unit.data_prep.support import DATA_PREP, WAITING, start, write

from support import ended, wait_for

# Holds the lock, with a worker whose number it prints, until its input ends.
HOLDER = """
import os, pathlib, sys
from concurrent.futures import ProcessPoolExecutor
from preparation.locking import locked
from preparation.parallel import start_worker
with locked(pathlib.Path(sys.argv[1]), "out"), ProcessPoolExecutor(1, initializer=start_worker) as pool:
    print(pool.submit(os.getpid).result(), flush=True)
    sys.stdin.read()
"""


def test_a_lock_is_waited_for_and_leaves_nothing(tmp_path):
    lock = write(tmp_path / "out/.lock", ["process 1, which was killed, with a long note" * 20])
    first = start(HOLDER, lock)
    assert first.stdout.readline()
    others = [start(HOLDER, lock) for _ in range(3)]
    for process in others:
        said = process.stderr.readline()
        assert said.startswith(f"out: process {first.pid} on ") and said.endswith(f") {WAITING}") and "-c" in said
    assert lock.exists()
    for process in (first, *others):
        process.stdin.close()
    assert [process.wait() for process in (first, *others)] == [0] * 4
    assert not lock.parent.exists()


def test_a_lock_file_of_another_person(tmp_path):
    """A link writes over nothing, and a note does nothing to the terminal."""
    text, lock = write(tmp_path / "text", ["precious"]), tmp_path / "out/.lock"
    lock.parent.mkdir()
    lock.symlink_to(text)
    with locked(lock, "out"):
        pass
    assert text.read_text() == "precious\n" and not lock.is_symlink()
    with open(write(tmp_path / "lock", ["process 1 \x1b[2J"]), "r+") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        waiting = start(HOLDER, tmp_path / "lock")
        assert waiting.stderr.readline().startswith("out: process 1 ?[2J? writes there")
    assert waiting.communicate("")[1] == ""


def test_a_lock_does_not_survive_its_process(tmp_path):
    """Nor do the workers of one that is killed: they would write on, or wait for ever."""
    killed = start(HOLDER, tmp_path / ".lock")
    worker = int(killed.stdout.readline())
    killed.kill()
    killed.wait()
    assert start(HOLDER, tmp_path / ".lock").communicate("")[1] == ""
    wait_for(lambda: ended(worker), seconds=60)


def test_a_folder_that_its_last_holder_removes_meanwhile(tmp_path, monkeypatch):
    """Path.mkdir finds it, and then does not find that it is a folder."""
    mkdir, errors = pathlib.Path.mkdir, iter([FileExistsError])

    def made(*arguments, **options):
        for error in errors:
            raise error
        mkdir(*arguments, **options)

    monkeypatch.setattr(pathlib.Path, "mkdir", made)
    with locked(tmp_path / "out/.lock", "out"):
        assert (tmp_path / "out/.lock").exists()
    (tmp_path / "out").touch()
    with pytest.raises(FileExistsError), locked(tmp_path / "out/.lock", "out"):
        pass


def test_a_lock_file_that_nfs_has_renamed_guards_nothing(tmp_path, monkeypatch):
    """It does so where the last holder removes a file that others have opened."""
    path, lock = tmp_path / ".lock", locking._lock

    def waited(*arguments):
        monkeypatch.setattr(locking, "_lock", lock)
        path.rename(tmp_path / ".nfs0001")
        lock(*arguments)

    monkeypatch.setattr(locking, "_lock", waited)
    with locked(path, "out"):
        assert path.exists(), "a third process waits for this one"


def test_a_lock_is_held_until_its_file_is_gone(tmp_path, monkeypatch):
    """Another process could lock the file in between, and a third one a new file of its name."""
    unlink, tries = pathlib.Path.unlink, []
    lock = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'a+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"

    def checked(path, **options):
        tries.append(subprocess.run([sys.executable, "-c", lock, path], capture_output=True).returncode)
        unlink(path, **options)

    monkeypatch.setattr(pathlib.Path, "unlink", checked)
    with locked(tmp_path / ".lock", "out"):
        pass
    assert tries == [1]


def test_ctrl_c_leaves_a_waiting_worker_to_its_parent(tmp_path):
    holder = start(HOLDER, tmp_path / ".lock")
    os.kill(int(holder.stdout.readline()), signal.SIGINT)
    assert holder.communicate("") == ("", "") and holder.returncode == 0


def test_ctrl_c_ends_a_worker_with_a_long_task(tmp_path):
    """Binarising WMT14's takes minutes, for which the parent would wait."""
    script = HOLDER.replace("import start", "import interruptible, start").replace("submit(", "submit(interruptible, ")
    holder = start(script, tmp_path / ".lock")
    worker = int(holder.stdout.readline())
    os.kill(worker, signal.SIGINT)
    wait_for(lambda: ended(worker), seconds=60)
    assert holder.communicate("") == ("", "")


def test_a_file_system_without_locks_is_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "lockf", mock.Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    with locked(tmp_path / "out/.lock", "out"):
        write(tmp_path / "out/text", ["a"])
    assert [*(tmp_path / "out").iterdir()] == [tmp_path / "out/text"]


def test_ctrl_c_ends_the_waiting_of_a_shell_without_a_word(tmp_path):
    with open(tmp_path / "lock", "a+") as held, open(tmp_path / "lock", "a+") as wanted:
        fcntl.flock(held, fcntl.LOCK_EX)
        command = [sys.executable, "-m", "preparation.locking", str(wanted.fileno()), "out", str(os.getpid())]
        pipes = {"stderr": subprocess.PIPE, "text": True, "pass_fds": [wanted.fileno()]}
        with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(DATA_PREP)}, **pipes) as waiting:
            assert waiting.stderr.readline().endswith(WAITING)
            waiting.send_signal(signal.SIGINT)
            assert waiting.stderr.read() == "" and waiting.wait() == -signal.SIGINT
