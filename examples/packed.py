"""Finds, reads, compares and writes text files, which may be packed, for g2p.py and sequences.py."""

import gzip
import pathlib
import sys
import zlib
from collections.abc import Iterable


def find(folder: pathlib.Path, *names: str) -> pathlib.Path | None:
    """The first of these files that is there, as it is or with .gz."""
    paths = [folder / (name + ending) for name in names for ending in ("", ".gz")]
    return next((path for path in paths if path.exists()), None)


def lines_of(path: pathlib.Path) -> list[str]:
    """The lines of `path` without their ends; ends the command in one line if it cannot be read."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig") as file:
            lines = [*file]
        if not lines or not lines[-1].endswith("\n"):
            raise EOFError("it is empty, or cut off in its last line")
        return [line.rstrip("\n") for line in lines]
    except (OSError, EOFError, ValueError, zlib.error) as error:  # no gzip, cut off, not UTF-8, damaged
        sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {path} cannot be read: {error}")


def write_lines(path: pathlib.Path, lines: Iterable[str]) -> None:
    """Writes the lines, in a new folder if there is none; ends the command in one line if that is not possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:  # of a full disk it names nothing
        sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {path} cannot be written: {error.strerror}")


def compared(correct: str | pathlib.Path, translations: str) -> list[tuple[str, bool]]:
    """Each line of `correct`, and whether that of `translations` is equal; ends the command if one has more lines."""
    right, given = (lines_of(pathlib.Path(path)) for path in (correct, translations))
    if len(right) != len(given):
        counts = f"{translations} has {len(given)} lines and {correct} has {len(right)}"
        sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {counts}: translate the test set again")
    return [(line, line == ours.strip()) for line, ours in zip(right, given)]
