"""Writes files completely or not at all."""

import contextlib
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator

from .errors import InputError

DEVICES = (pathlib.Path("/dev"), pathlib.Path("/dev/fd"))  # /dev/stdout, for example, links to the file or pipe in use


def refuse_missing_folder(path: pathlib.Path) -> None:
    """Raises InputError if the folder of `path`, which is to be written, does not exist."""
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}: make it, or name another")


def refuse_output(path: pathlib.Path, inputs: Iterable[pathlib.Path] = ()) -> None:
    """Raises InputError if `path`, which is to be written, has no folder, or is a folder or one of the `inputs`."""
    refuse_missing_folder(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file in it")
    if path.is_file() and any(other.exists() and path.samefile(other) for other in inputs):
        raise InputError(f"{path} is the input: name another file to write")


@contextlib.contextmanager
def folder_beside(path: pathlib.Path) -> Iterator[str]:
    """A temporary folder beside `path`. An OSError that names no file, or one in it, names `path` instead.

    Raises:
        InputError: if none can be made there
    """
    try:
        made = tempfile.TemporaryDirectory(dir=path.parent, prefix=f"{path.name}.", ignore_cleanup_errors=True)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}: name another place") from None
    with made as folder:
        try:
            yield folder
        except OSError as error:  # of a full disk it names nothing
            if error.filename is None or str(error.filename).startswith(folder):
                error.filename = str(path)
            raise


def write(path: pathlib.Path, save: Callable[[pathlib.Path], object], inputs: Iterable[pathlib.Path] = ()) -> None:
    """Has `save` write a temporary file and moves it to `path`, so that `path` is never half-written.

    If two commands write to the same `path` at once, the file of the one that finishes last remains. Pipes and devices
    (/dev/stdout) are written to directly.

    Raises:
        InputError: as refuse_output, and if the folder of `path` cannot be written to
    """
    refuse_output(path, inputs)
    named = path.readlink() if path.is_symlink() else path
    if named.parts[:2] == ("/", "proc") or path.parent in DEVICES or path.exists() and not path.is_file():
        save(path)
        return
    path = path.resolve()  # so that a link stays one
    with folder_beside(path) as folder:
        partial = pathlib.Path(folder, path.name)
        save(partial)
        if path.exists():
            shutil.copymode(path, partial)  # others may not be allowed to read it
        partial.replace(path)


def write_text(path: pathlib.Path, text: str) -> None:
    """As `write`, in UTF-8. A byte of a path that is not UTF-8 becomes an escape such as \\udce7, which JSON reads."""
    write(path, lambda partial: partial.write_text(text, encoding="utf-8", errors="backslashreplace"))
