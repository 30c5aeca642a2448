"""Reads texts out of archives in memory; nothing is ever unpacked to disk, let alone run."""

import contextlib
import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from .errors import PreparationError
from .markup import sentences, verses
from .text import decoded

# How large a text of an archive may be: texts compress to a tenth at best.
FACTOR, LEAST = 100, 1 << 24
DAMAGED = (EOFError, tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError)


def lines_within(file: Path, steps: list[str]) -> Iterator[str]:
    """Lines of the text found by opening the file and then, step by step, what is inside it.

    Tar (compressed or not) and zip archives are told by their names' endings, and so are gz files and mark-up.
    """
    where = " in ".join(reversed([str(file), *steps]))
    with _reading(where), contextlib.ExitStack() as opened:
        stream: BinaryIO = opened.enter_context(open(file, "rb"))
        name = file.name
        for step in steps:
            stream, name = _member(stream, name, step, opened), step
        if name.endswith(".gz"):
            stream = opened.enter_context(gzip.open(stream))
        stream = Limited(stream, max(LEAST, FACTOR * file.stat().st_size), where)
        yield from sentences((line.removesuffix("\n") for line in decoded(stream, where)), name)


def verses_within(file: Path, folder: str) -> dict[tuple[str, str, str], str]:
    """Verses by book, chapter and verse, of the Bible whose books are the files of `folder` in a tar archive."""
    found: dict[tuple[str, str, str], str] = {}
    with _reading(file), tarfile.open(file) as tar:
        for entry in tar:
            if entry.name.rpartition("/")[0] == folder and (stream := tar.extractfile(entry)):
                where = f"{entry.name} in {file}"
                found.update(verses(decoded(Limited(stream, LEAST, where), where)))
    if not found:
        raise PreparationError(f"{file.name}: holds no verses in {folder}; the registry of corpora names the wrong one")
    return found


@contextlib.contextmanager
def _reading(where: str | Path) -> Iterator[None]:
    """Raises a PreparationError for what a damaged archive makes of being read."""
    try:
        yield
    except DAMAGED as error:
        raise PreparationError(f"{where}: truncated or damaged archive ({error}); fetch it again") from None


class Limited:
    """A stream that ends in a PreparationError after so many bytes: an archive may hold a million times its size."""

    def __init__(self, stream: BinaryIO, most: int, where: str) -> None:
        self.stream, self.most, self.left, self.where = stream, most, most, where

    def readline(self, size: int) -> bytes:
        line = self.stream.readline(size)
        self.left -= len(line)
        if self.left < 0:
            reason = f"more than {self.most:,} bytes, {FACTOR} times the archive"
            raise PreparationError(f"{self.where}: {reason}; unpack it yourself if you trust it, and use --train")
        return line


def _member(stream: BinaryIO, archive: str, member: str, opened: contextlib.ExitStack) -> BinaryIO:
    try:
        if archive.endswith(".zip"):
            return opened.enter_context(opened.enter_context(zipfile.ZipFile(stream)).open(member))
        tar = opened.enter_context(tarfile.open(fileobj=stream))
        for entry in tar:  # to the member and no further: getmember would first decompress gigabytes to their end
            if entry.name.removeprefix("./") == member and (inside := tar.extractfile(entry)):
                return opened.enter_context(inside)
    except KeyError:
        pass
    raise PreparationError(f"{archive}: holds no file {member}; the registry of corpora names the wrong one")
