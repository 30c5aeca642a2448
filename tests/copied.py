"""Asks the process of commands.py for a command: python -SE copied.py SOCKET FOLDER COMMAND ARGUMENT…

It is what tests find as python or fairseq-train on PATH, and so imports little. FOLDER has the commands themselves.
"""

import json
import os
import signal
import socket
import sys


def ask(address: str, words: list[str]) -> int:
    """The exit status of a command with this process's folder, environment and streams; −9 if signal 9 has ended it."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [b"."], [0, 1, 2])
        server.sendall(json.dumps({"words": words, "cwd": os.getcwd(), "env": dict(os.environ)}).encode())
        server.shutdown(socket.SHUT_WR)
        return int(server.makefile().read() or -signal.SIGKILL)


def forwarded(name: str, *words: str) -> bool:
    """Whether a copy can run the command: our modules and scripts, some packages' commands; not python -c, -m pip."""
    script = words and (words[0].endswith(".py") or (words[0] == "-m" and words[1].startswith("user_dir.")))
    return bool(script) if name == "python" else name.startswith(("fairseq-", "nmt-", "sacrebleu"))


if __name__ == "__main__":
    address, folder, *words = sys.argv[1:]
    if not forwarded(*words):
        real = f"{folder}/{words[0]}"
        os.execv(real, [real, *words[1:]])  # Python finds its environment by this name
    status = ask(address, words)
    if status < 0:  # by a signal
        os.kill(os.getpid(), -status)
    sys.exit(status)
