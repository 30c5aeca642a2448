"""Files are written whole or not at all."""

import pathlib
import tempfile
from collections.abc import Callable


def write(path: pathlib.Path, save: Callable[[pathlib.Path], object]) -> None:
    """`save` writes a temporary file, which is then moved to `path`, so that `path` is never half-written.

    If two commands write to the same `path` at once, the file of the one that ends last remains. A pipe or a device
    (/dev/stdout) is written to directly.
    """
    if path.exists() and not path.is_file():
        save(path)
        return
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f"{path.name}.", ignore_cleanup_errors=True) as folder:
        partial = pathlib.Path(folder, path.name)
        save(partial)
        partial.replace(path)
