"""Shared by the tests of data-prep: made-up sentences and registries, and processes that run its modules."""

import hashlib
import io
import os
import random
import subprocess
import sys
import tarfile
import types
import zipfile
from pathlib import Path

import pytest
from preparation.errors import PreparationError

DATA_PREP = Path(__file__).resolve().parents[3] / "data-prep"
FULL_DISK = types.SimpleNamespace(free=9)  # for shutil.disk_usage


def write(path: Path, lines) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def assert_error(words: str, read, *arguments) -> None:
    """`read`, which may be a generator, refuses them in one line, in which `words` match."""
    with pytest.raises(PreparationError, match=words) as refused:
        list(read(*arguments))
    assert "\n" not in str(refused.value)


def sentences(count: int) -> list[tuple[str, str]]:
    """Made-up pairs; half of the first sides come again with another case, punctuation and translation."""
    generator = random.Random(1)
    words = ["".join(generator.choices("abcdefgh", k=5)) for _ in range(200)]
    pairs = []
    while len(pairs) < count:
        first = " ".join(generator.choices(words, k=5))
        pairs.append((first, first[::-1]))
        if len(pairs) % 2:
            pairs.append((first.capitalize() + " !", " ".join(generator.choices(words, k=5))))
            pairs.append((" ".join(generator.choices(words, k=5)), first[::-1].upper() + "?"))
    return pairs[:count]


ORDINARY = {
    "en": [
        "I don't know; it's Mr. Smith's well-known dog, isn't it?",
        'He said: "Buy 3,500 shares (at $5.20) & sell 50% of them."',
        "Research [sic] costs more... Why?",
    ],
    "fr": [
        "Aujourd'hui, l'homme n'a pas d'argent ; qu'est-ce que c'est ?",
        "Où est-elle ? À l'école, peut-être !",
        "Elle m'a dit : vas-y, c'est à toi.",
    ],
}


# Words that Moses' rules treat by what is beside them, or that stand for its own marks.
TRICKY = """Mr. No. Nr. z.B. usw. p. U.S. 5 5, 1,000 a, , ' 'tis dogs' don't l'homme (x) [y] "q" q." q," ... .. a.b .5
    5. DOTMULTI MULTI , ,, a,,b é. ª ⓐ ⓐ. x/y & < > | ` `` '' a-b - -- 50 % ?! A. 9' 9's ,a 's €5 £. №5 ²."""


WAITING = "writes there; waiting until it and its child processes have ended\n"


def start(script, *arguments) -> subprocess.Popen:
    """A process that has the package of data-prep."""
    env = {**os.environ, "PYTHONPATH": str(DATA_PREP)}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, env=env, text=True, **pipes)


TABLE = "".join(f"{a}\t{b}\tby {number}\n" for number, (a, b) in enumerate(sentences(300)))


def packed(table: bytes, entry: str = "thing-1/inner.zip", name: str = "table.txt") -> bytes:
    """A tar.gz with a zip with a table in it, as Tatoeba comes."""
    inner, outer = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr(name, table)
    with tarfile.open(fileobj=outer, mode="w:gz") as archive:
        member = tarfile.TarInfo(entry)
        member.size = len(inner.getvalue())
        archive.addfile(member, io.BytesIO(inner.getvalue()))
    return outer.getvalue()


def registry(folder: Path, archive: bytes, table='["thing-1.tar.gz", "thing-1/inner.zip", "table.txt"]') -> list[str]:
    """Writes a registry of one corpus and its mirror; returns the options that use them."""
    (folder / "mirror").mkdir(parents=True)
    (folder / "mirror" / "thing-1.tar.gz").write_bytes(archive)
    (folder / "registry.toml").write_text(f"""
        [thing]
        title = "A thing"
        licence = "CC0"
        attribution = "Somebody's sentences"
        homepage = "-"
        [thing.files."thing-1.tar.gz"]
        package = "thing"
        bytes = {len(archive)}
        sha256 = "{hashlib.sha256(archive).hexdigest()}"
        [thing.pairs.en-fr]
        table = {table}
        columns = ["en", "fr", "attribution"]
    """)
    return ["thing", "--registry", str(folder / "registry.toml"), "--mirror", str(folder / "mirror")]
