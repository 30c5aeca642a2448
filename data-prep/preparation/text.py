"""Reading, checking and writing lines of text."""

import contextlib
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from .errors import PreparationError

# Soft hyphens, marks of direction, joiners and byte order marks: Moses would cut words there.
INVISIBLE = re.compile("[\u00ad\u061c\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
LONGEST = 1 << 24  # the most bytes in a line
CONVERT = "convert the file first from its encoding, for example with iconv -f {} -t utf-8"
TOOLS = {b"\x1f\x8b": "gunzip", b"BZh": "bunzip2", b"\xfd7zXZ": "unxz", b"PK\3\4": "unzip"}
MARKS = {mark: f"decompress the file first, with {tool}" for mark, tool in TOOLS.items()}  # a file's first bytes
MARKS |= dict.fromkeys((b"\xff\xfe", b"\xfe\xff"), CONVERT.format("utf-16"))


def tidy(sentence: str) -> str:
    """In Unicode NFC, with single spaces as white space (no-break spaces, carriage returns, …), without INVISIBLE."""
    return " ".join(unicodedata.normalize("NFC", INVISIBLE.sub("", sentence)).split())


def decoded(stream: BinaryIO, name: str | Path) -> Iterator[str]:
    """Lines as text, without a byte order mark.

    A PreparationError names the first line that is not UTF-8 or longer than LONGEST, of which no more is in memory.
    """
    for number, line in enumerate(iter(partial(stream.readline, LONGEST + 1), b""), 1):
        if len(line) > LONGEST:
            raise PreparationError(
                f"{name}, line {number}: longer than {LONGEST:,} bytes; give a text with one sentence per line"
            )
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            remedies = (remedy for mark, remedy in MARKS.items() if line.startswith(mark))
            remedy = next(remedies, CONVERT.format("latin1"))
            message = f"{name}, line {number}: not valid UTF-8 at byte {error.start + 1}; {remedy}"
            raise PreparationError(message) from None
        yield text.removeprefix("\ufeff") if number == 1 else text


def read_lines(path: Path) -> Iterator[str]:
    """The file's lines, split only at newlines: str.splitlines would also split at U+2028 and others."""
    with open(path, "rb") as stream:
        for line in decoded(stream, path):
            yield line.removesuffix("\n")


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Writes the lines; returns their number."""
    return write_columns([path], ((line,) for line in lines))


def write_columns(paths: list[Path], rows: Iterable[tuple[str, ...]]) -> int:
    """Writes each column of the rows to a separate file, line by line; returns the number of rows."""
    count = 0
    with contextlib.ExitStack() as opened:
        streams = [opened.enter_context(open(path, "w", encoding="utf-8", newline="\n")) for path in paths]
        for row in rows:
            count += 1
            for stream, cell in zip(streams, row, strict=True):
                stream.write(cell + "\n")
    return count


def sha256(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_parallel(first: Path, second: Path) -> None:
    """Raises a PreparationError unless two files have the same number of lines, at least one, all of them UTF-8."""
    counts = []
    for path in (first, second):
        if not path.is_file():
            pipe = path.exists() and not path.is_dir()
            remedy = "not an ordinary file, which can be read twice; write the text to one"
            raise PreparationError(f"{path}: {remedy if pipe else 'no such file; check the path'}")
        counts.append(sum(1 for _ in read_lines(path)))
        if not counts[-1]:
            raise PreparationError(f"{path}: the file is empty; it needs one sentence per line")
    if first.samefile(second):
        raise PreparationError(f"{first} is given for both languages; name the text of each")
    if counts[0] != counts[1]:
        both = f"{first} has {counts[0]:,} lines but {second} has {counts[1]:,}"
        raise PreparationError(f"{both}: line n of one must translate line n of the other; align them first")
