"""A file that is whole or not there."""

import pathlib
import tempfile
from collections.abc import Callable


def write(path: pathlib.Path, save: Callable[[pathlib.Path], object]) -> None:
    """`save` writes a file elsewhere, which is then moved to `path`: what is there is never half of it.

    Two commands that write to one `path` at a time leave the file of the one that ended last. A pipe or a device
    (/dev/stdout) is written to as it is.
    """
    if path.exists() and not path.is_file():
        save(path)
        return
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f"{path.name}.", ignore_cleanup_errors=True) as folder:
        partial = pathlib.Path(folder, path.name)
        save(partial)
        partial.replace(path)
