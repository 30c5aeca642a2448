"""Runs the trainings of trainings.toml's groups, several at a time, and copies the record of each to results/.

    python examples/train.py multi30k g2p --mirror /data     # continues where it stopped, skips finished trainings
    python examples/train.py multi30k --list                 # the commands, and which of them have a record

Each training is a recipe's command as you would type it, by default with one thread on CPUs (OMP_NUM_THREADS, GPUS), at
the lowest priority, in runs/trainings/NAME, with its output in runs/trainings/NAME.log. GPUS=1 spreads them over the
GPUs. Ctrl-C, SIGTERM or a closed terminal ends all their processes.
The recipes and the code are read throughout, so start it in a checkout that nobody edits.
"""

import contextlib
import fnmatch
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

from record import PROJECT, VARIABLES, as_typed
from trainings import HOW, Training, read_table, records_of_row, trainings_of

from user_dir.errors import InputError
from user_dir.tools.shared.command import exit_in_one_line, new_parser
from user_dir.tools.shared.records import RECORD, checksum_of_data, read_record, write_record


class Running:
    """A running training, under supervise.py, which ends all its processes with it."""

    def __init__(self, training: Training, mirror: pathlib.Path | None, gpu: str | None):
        self.training, self.gpu = training, gpu
        variables, words = training.command(mirror)
        if gpu is not None:
            variables["CUDA_VISIBLE_DEVICES"] = gpu
        training.run.mkdir(parents=True, exist_ok=True)
        self.log = training.run.with_name(f"{training.name}.log")
        if others := records_of_row(training.row, training.record.parent):  # all of the same data
            variables["DATA_SHA256"] = checksum_of_data(read_record(others[0])) or ""
        # Recipes use this Python's environment and do not install into it, because two must not do so at a time.
        path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                ["nice", "-n", "19", sys.executable, "-S", "examples/shared/supervise.py", "bash", *words],
                cwd=PROJECT,
                env=os.environ | variables | {"PATH": path, "INSTALL": "no"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        with contextlib.suppress(OSError):  # where Linux groups processes by session, nice counts within one only
            pathlib.Path(f"/proc/{self.process.pid}/autogroup").write_text("19")

    def progress(self) -> str:
        """The last report and the last validation loss in the recipe's output."""
        text = ""
        with contextlib.suppress(OSError), open(self.log, "rb") as log:  # somebody may have removed it
            log.seek(max(0, os.fstat(log.fileno()).st_size - 20_000))
            text = log.read().decode(errors="replace")
        update = re.findall(r"^update (\d+ of \d+): (?!valid)(?:.*?([\d.e+]+) words/s)?", text, re.MULTILINE)
        valid = re.findall(r"^update \d+ of \d+: valid loss ([\d.]+)", text, re.MULTILINE)
        step = re.findall(r"^# (\w+)$", text, re.MULTILINE)
        state = f"{update[-1][0]}, {update[-1][1]} words/s" if update else (step[-1] if step else "begins")
        return f"{self.training.name}: {state}" + (f", valid {valid[-1]}" if valid else "")


def erase(line: str) -> str:
    """The characters that clear `line`, a terminal's last one, which may be wider than the terminal."""
    rows = max(len(line) - 1, 0) // shutil.get_terminal_size().columns
    return f"\x1b[{rows}A" * (rows > 0) + "\r\x1b[J"


def visible_gpus() -> list[str]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        import torch  # for a second

        visible = ",".join(map(str, range(torch.cuda.device_count())))
    return visible.split(",")


def train(waiting: list[Training], jobs: int, mirror: pathlib.Path | None) -> int:
    """Returns the number of failures. Ctrl-C, SIGTERM and SIGHUP end the running trainings and this command."""
    running: list[Running] = []
    stop: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            # Checked between two steps, so that no new process is missed.
            signal.signal(number, lambda number, frame: stop.append(number))
    count, failed, shown, line = len(waiting), 0, 0.0, ""
    terminal = sys.stdout.isatty()  # there a report replaces the one before it
    end, seconds = ("", 3) if terminal else ("\n", 60)
    gpus = visible_gpus() if os.environ.get("GPUS") == "1" else []  # over which trainings with one each are spread
    try:
        while waiting or running:
            if stop:
                sys.exit(128 + stop[0])
            while waiting and len(running) < jobs:
                gpu = min(gpus, key=[job.gpu for job in running].count, default=None)
                training = waiting.pop(0)
                if training.record.exists():  # another train.py, or a pull, has brought it meanwhile
                    continue
                try:
                    running.append(Running(training, mirror, gpu))
                except (InputError, OSError) as error:  # others go on
                    failed += 1
                    print(f"{training.name}: {error}", flush=True)
            time.sleep(0.2)
            for done in [job for job in running if job.process.poll() is not None]:
                running.remove(done)
                failure, training = finish(done), done.training
                failed += failure is not None
                print(f"{erase(line) * terminal}{training.name}: {failure or training.record}", flush=True)
                line = ""
            if running and time.monotonic() - shown > seconds:
                shown, before = time.monotonic(), line
                ended = f"{count - len(waiting) - len(running)} of {count} ended"
                line = " | ".join([ended, *(job.progress() for job in running)])
                print(f"{erase(before) * terminal}{line}", end=end, flush=True)
    finally:
        for job in running:
            job.process.terminate()
        for job in running:
            job.process.wait()
    return failed


def finish(job: Running) -> str | None:
    """Copies the record of a training that has ended; returns the reason if that is not possible."""
    training = job.training
    if job.process.returncode:
        return f"ended with status {job.process.returncode}; see the end of {job.log}"
    try:
        write_record(training.record, {"row": training.row, **read_record(training.run / RECORD)})
    except (InputError, OSError) as error:  # others go on
        return str(error)
    return None


@exit_in_one_line("train.py")
def main() -> None:
    parser = new_parser("train.py", __doc__)
    table = read_table()
    names = f"a group ({', '.join(table)}) or a pattern such as 'g2p.hun.*.1'; needed without --list"
    parser.add_argument("names", nargs="*", metavar="NAME", help=names)
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="trainings at a time (default: %(default)s)")
    mirror = "use the corpora in this folder's folders"
    parser.add_argument("--mirror", type=pathlib.Path, metavar="FOLDER", help=mirror)
    parser.add_argument("--list", action="store_true", help="print the commands and do nothing")
    args = parser.parse_args()
    if not args.names and not args.list:
        parser.error(f"name a group ({', '.join(table)}), or add --list")
    if args.jobs < 1:
        parser.error(f"--jobs {args.jobs}: give at least 1")
    if args.mirror and not args.mirror.is_dir():
        parser.error(f"--mirror {args.mirror}: there is no such folder")
    if others := [f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ and name not in HOW]:
        parser.error(f"{' '.join(others)}: it would change what is trained; unset it")
    known = [training for group in table for training in trainings_of(group, table)]
    trainings = {}
    for name in args.names or table:
        matches = {one.name: one for one in known if name == one.group or fnmatch.fnmatchcase(one.name, name)}
        if not matches:
            parser.error(f"{name}: neither a group ({', '.join(table)}) nor a pattern of a training's name")
        trainings |= matches
    trainings = list(trainings.values())
    for training in trainings:
        if training.record.exists():
            read_record(training.record)  # a damaged one does not count as done
    waiting = [training for training in trainings if not training.record.exists()]
    if args.list:
        for training in trainings:
            variables, words = training.command(args.mirror)
            print(f"{'to do' if training in waiting else 'done '} {training.name}: {as_typed(variables, words)}")
        return
    print(f"{len(trainings) - len(waiting)} of {len(trainings)} trainings have a record", flush=True)
    if failed := train(waiting, args.jobs, args.mirror):
        sys.exit(f"train.py: {failed} of {len(trainings)} trainings failed; run the same command to try them again")


if __name__ == "__main__":
    main()
