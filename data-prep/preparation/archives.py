"""Reads texts from archives in memory; nothing is ever unpacked to disk, let alone run."""

import bz2
import contextlib
import errno
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

# Limits on the size of a text in an archive, relative to the archive and in bytes: texts compress to a tenth at best.
FACTOR, LEAST = 100, 1 << 24
# Limit on the bytes that describe an entry of a tar archive. tarfile reads them whole, and before Python 3.11.10
# searches them in quadratic time.
HEADERS = 1 << 14
COMPRESSED = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open, b"]\0\0": lzma.open}
DAMAGED = (EOFError, ValueError, tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)


def lines_within(file: Path, steps: list[str]) -> Iterator[str]:
    """Lines of a text inside a file: each of `steps` is the name of an entry in the archive before it.

    Zip archives, gz files and mark-up are recognised by the endings of their names. Any other archive is a tar archive,
    compressed or not.
    """
    where = " in ".join(reversed([str(file), *steps]))
    most = most_of(file)
    with reading(where), contextlib.ExitStack() as opened:
        stream: BinaryIO = opened.enter_context(open(file, "rb"))
        name = file.name
        for step in steps:
            stream, name = _member(stream, name, step, most, opened), step
        if name.endswith(".gz"):
            stream = opened.enter_context(gzip.open(stream))
        stream = Limited(stream, most, where)
        yield from sentences((line.removesuffix("\n") for line in decoded(stream, where)), name.removesuffix(".gz"))


def verses_within(file: Path, folder: str) -> dict[tuple[str, str, str], str]:
    """Verses by book, chapter and number, of the Bible whose books are the files of `folder` in a tar archive."""
    bible: dict[tuple[str, str, str], str] = {}
    left = most_of(file)
    with reading(file), open(file, "rb") as stream, contextlib.ExitStack() as opened:
        for entry, inside in _files(stream, str(file), left, opened):
            if entry.rpartition("/")[0] == folder:
                where = f"{entry} in {file}"
                limited = Limited(inside, left, where)
                try:
                    bible.update(verses(decoded(limited, where)))
                except KeyError as missing:
                    raise PreparationError(f"{where}: a verse comes before its {missing.args[0]}") from None
                left = limited.left
    if not bible:
        raise PreparationError(f"{file.name}: holds no verses in {folder}; correct it in the registry of corpora")
    return bible


def most_of(file: Path) -> int:
    """The most bytes that are read from an archive's texts."""
    return max(LEAST, FACTOR * file.stat().st_size)


@contextlib.contextmanager
def reading(where: str | Path) -> Iterator[None]:
    """Raises a PreparationError for the errors of a damaged archive, or of one of another kind."""
    try:
        yield
    except RuntimeError as error:  # an encrypted zip archive, one of unknown compression, headers within headers
        raise PreparationError(f"{where}: not readable ({error}); unpack it yourself, and use --train") from None
    except (*DAMAGED, OSError) as error:
        # Errors of decompression have no number. A damaged zip archive points to places before the file's beginning.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        remedy = "delete it and fetch it again"  # the cache may have it
        raise PreparationError(f"{where}: truncated or damaged archive ({error}); {remedy}") from None


class Limited:
    """A stream that raises a PreparationError after `most` bytes: an archive may contain a million times its size."""

    def __init__(self, stream: BinaryIO, most: int, where: str) -> None:
        self.stream, self.left, self.where = stream, most, where

    def __getattr__(self, name: str):
        return getattr(self.stream, name)  # seek, tell and the like

    def readline(self, size: int) -> bytes:
        return self._counted(self.stream.readline(size))

    def read(self, size: int = -1) -> bytes:
        return self._counted(self.stream.read(self.left + 1 if size < 0 else min(size, self.left + 1)))

    def _counted(self, data: bytes) -> bytes:
        self.left -= len(data)
        if self.left < 0:
            remedy = "unpack the archive yourself if you trust it, and use --train"
            raise PreparationError(f"{self.where}: larger than a corpus archive should be; {remedy}")
        return data


def _member(stream: BinaryIO, archive: str, member: str, most: int, opened: contextlib.ExitStack) -> BinaryIO:
    if archive.endswith(".zip"):
        limited = Limited(stream, LEAST, f"{archive}: its table of contents")
        zipped = opened.enter_context(zipfile.ZipFile(limited))
        limited.left = most
        with contextlib.suppress(KeyError):
            return opened.enter_context(zipped.open(member))
    else:
        for name, inside in _files(stream, archive, most, opened):  # to the member and no further
            if name.removeprefix("./") == member:
                return inside
    raise PreparationError(f"{archive}: holds no file {member}, or only a link; correct it in the registry of corpora")


def _files(stream: BinaryIO, archive: str, most: int, opened: contextlib.ExitStack) -> Iterator[tuple[str, BinaryIO]]:
    """Names and contents of the files in a tar archive, without links; memory does not grow with the entries."""
    start = stream.read(6)
    stream.seek(0)
    for magic, decompress in COMPRESSED.items():
        if start.startswith(magic):
            stream = opened.enter_context(decompress(stream))
    limited = Limited(stream, HEADERS, f"{archive}: the header of an entry")
    tar = opened.enter_context(tarfile.open(fileobj=limited, mode="r:"))
    place = -1
    for entry in iter(tar.next, None):
        if entry.offset <= place:  # a negative size, with which the same entries would be repeated for ever
            raise tarfile.ReadError("an entry points backwards")
        place = entry.offset
        if entry.isreg():
            limited.left = most
            yield entry.name, tar.extractfile(entry)
        tar.members.clear()
        tar.pax_headers.clear()
        limited.left = HEADERS
