"""A file that is whole or not there."""

import pathlib
from collections.abc import Callable


def write(path: pathlib.Path, save: Callable[[pathlib.Path], object]) -> None:
    """`save` writes a file of a temporary name, which is then renamed: what is at `path` is never half of it.

    A pipe or a device (/dev/stdout) is written to as it is.
    """
    if path.exists() and not path.is_file():
        save(path)
        return
    partial = path.with_name(path.name + ".partial")
    try:
        save(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
