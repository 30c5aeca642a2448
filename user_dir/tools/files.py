"""A file that is whole or not there."""

import pathlib
from collections.abc import Callable


def write(path: pathlib.Path, save: Callable[[pathlib.Path], object]) -> None:
    """`save` writes a file of a temporary name, which is then renamed: what is at `path` is never half of it."""
    partial = path.with_name(path.name + ".partial")
    try:
        save(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
