"""Archives, registries, downloads and manifests made up by somebody else reach nothing beyond their place."""

import bz2
import functools
import gzip
import hashlib
import io
import json
import lzma
import random
import tarfile
import tracemalloc
import zipfile

import prepare
import pytest
from preparation import archives, corpora, fetching, text
from preparation.archives import lines_within
from preparation.errors import PreparationError
from preparation.stages import ORDER, Stages
from unit.data_prep.support import TABLE, assert_error, files_of, packed, registry, write
from unit.data_prep.test_fetching import server  # noqa: F401  (a fixture)

LINKS = [{"text": target} for target in ("{folder}/secret", "../secret", "text", "gone")] + [{"text": "b", "b": "text"}]


@pytest.mark.parametrize("links", LINKS, ids=str)
@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE])
def test_links_and_devices_are_no_texts(tmp_path, kind, links):
    """No link is followed, neither out of the archive nor round in a circle."""
    (tmp_path / "secret").write_text("secret\n")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, target.format(folder=tmp_path)
            archive.addfile(entry)
    assert_error("holds no file text, or only a link", lines_within, tmp_path / "a.tar", ["text"])
    assert_error("holds no verses in", archives.verses_within, tmp_path / "a.tar", "")


def zipped(folder):
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.writestr("text", "un\n")
    return bytearray((folder / "a.zip").read_bytes())


# Offsets of what a zip archive says of a file, beside the file and in the table of contents at the end.
ZIP_FLAGS, ZIP_METHOD = (6, 8), (8, 10)


@pytest.mark.parametrize("offsets, value", [(ZIP_FLAGS, 1), (ZIP_FLAGS, 64), (ZIP_METHOD, 99)])
def test_zip_archives_that_python_cannot_read(tmp_path, offsets, value):
    """Encrypted ones, and compression of another program."""
    content = zipped(tmp_path)
    content[offsets[0]] = content[content.index(b"PK\1\2") + offsets[1]] = value
    (tmp_path / "a.zip").write_bytes(content)
    words = "^text in .*a.zip: .*; unpack it yourself, and use --train$"
    assert_error(words, lines_within, tmp_path / "a.zip", ["text"])


OLD_LZMA = functools.partial(lzma.compress, format=lzma.FORMAT_ALONE)


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress, OLD_LZMA, gzip.compress])
def test_damaged_compression(tmp_path, pack):
    content = header(tarfile.REGTYPE, 300, "text") + random.Random(1).randbytes(300).ljust(512, b"\0")
    (tmp_path / "a.tar").write_bytes(pack(content)[:-40] + bytes(40))
    assert_error("a.tar: truncated or damaged", lines_within, tmp_path / "a.tar", ["gone"])
    whole = header(tarfile.REGTYPE, 3, "text") + b"un\n".ljust(512 + 1024, b"\0")
    (tmp_path / "a.tar").write_bytes(pack(whole))
    assert list(lines_within(tmp_path / "a.tar", ["text"])) == ["un"]


def test_a_damaged_text(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"un\n")[:10] + 40 * b"\xff")
    assert_error("a.gz: truncated or damaged", lines_within, tmp_path / "a.gz", [])


def test_a_zip_archive_that_leads_to_before_its_beginning(tmp_path):
    content = zipped(tmp_path)
    content[-5] += 1  # of the place of the table of contents
    (tmp_path / "a.zip").write_bytes(content)
    assert_error("a.zip: truncated or damaged", lines_within, tmp_path / "a.zip", ["text"])


def header(kind: bytes, size: int, name="x") -> bytes:
    """The first block of an entry of a tar archive."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.size = kind, size
    return entry.tobuf(tarfile.GNU_FORMAT)


def pax(name: str, size: int) -> bytes:
    """A header for all entries, with a value of so many bytes."""
    value = f" {name}=".encode() + size * b"z" + b"\n"
    record = str(len(value) + 6).zfill(6).encode() + value
    return header(tarfile.XGLTYPE, len(record)) + record + bytes(-len(record) % 512)


LARGE = 2**24
SPARSE = header(tarfile.GNUTYPE_SPARSE, 0)[:482] + b"\1" + bytes(29)  # more follows
SPARSE = SPARSE[:148] + b"%06o\0 " % (256 + sum(SPARSE[:148] + SPARSE[156:])) + SPARSE[156:]
BOMBS = {
    "a pax header": (header(tarfile.XHDTYPE, LARGE), bytes(2**20), LARGE >> 20),
    "a pax header after a text": (
        header(tarfile.REGTYPE, 0) + header(tarfile.XHDTYPE, LARGE // 2),
        *(bytes(2**20), LARGE >> 21),
    ),
    "a long name": (header(tarfile.GNUTYPE_LONGNAME, LARGE), b"x" * 2**20, LARGE >> 20),
    "a map of holes": (SPARSE, (b"00000000001\0" * 42 + b"\1").ljust(512, b"\0"), LARGE >> 9),
    "entries": (b"", header(tarfile.REGTYPE, 0), 2000),
    "headers of all entries": (b"", lambda number: pax(f"k{number}", 15_000) + header(tarfile.REGTYPE, 0), 300),
    "headers within headers": (b"", header(tarfile.XHDTYPE, 0), 3000),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_archives_without_text_take_no_memory(tmp_path, bomb):
    """Megabytes of headers, all of which tarfile would keep: an announced 3 GB took 3 GB."""
    start, block, times = BOMBS[bomb]
    with gzip.open(tmp_path / "a.tgz", "wb", 1) as archive:
        archive.write(start)
        for number in range(times):
            archive.write(block(number) if callable(block) else block)
    assert (tmp_path / "a.tgz").stat().st_size < 2**20
    tracemalloc.start()
    try:
        words = "header of an entry: larger|damaged|not readable|holds no file"
        assert_error(words, lines_within, tmp_path / "a.tgz", ["text"])
        assert tracemalloc.get_traced_memory()[1] < 2**19
    finally:
        tracemalloc.stop()


def test_a_table_of_contents_takes_no_memory(tmp_path, monkeypatch):
    """That of a zip archive in a tar archive, which compresses it."""
    monkeypatch.setattr(archives, "LEAST", 2**16)
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        for number in range(2000):
            archive.writestr(f"text{number}", "")
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive:
        entry = tarfile.TarInfo("a.zip")
        entry.size = len(inner.getvalue())
        archive.addfile(entry, io.BytesIO(inner.getvalue()))
    assert_error("a.zip: its table of contents: larger", lines_within, tmp_path / "a.tgz", ["a.zip", "text"])
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("text", 70_000 * "x")  # a text may be larger
    assert [*map(len, lines_within(tmp_path / "b.zip", ["text"]))] == [70_000]


def test_an_entry_of_negative_size_ends(tmp_path):
    """tarfile would read it again and again."""
    content = bytearray(header(tarfile.REGTYPE, 0) * 2 + bytes(1024))
    content[512 + 124 : 512 + 136] = (-512).to_bytes(12, "big", signed=True)
    total = 256 + sum(content[512 : 512 + 148]) + sum(content[512 + 156 : 1024])
    content[512 + 148 : 512 + 156] = b"%06o\0 " % total
    (tmp_path / "a.tar").write_bytes(content)
    assert_error("a.tar: truncated or damaged", lines_within, tmp_path / "a.tar", ["text"])


def test_a_verse_before_its_chapter(tmp_path):
    text = b'<BIBLEBOOK bnumber="1">\n<VERS vnumber="1">a</VERS>\n'
    (tmp_path / "a.tar").write_bytes(header(tarfile.REGTYPE, len(text)) + text.ljust(1024, b"\0"))
    assert_error("^x in .*a.tar: .* CHAPTER", archives.verses_within, tmp_path / "a.tar", "")


def test_books_of_a_bible_share_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "LEAST", 2**16)
    (tmp_path / "a.tgz").write_bytes(gzip.compress(2 * (header(tarfile.REGTYPE, 2**15 + 512) + b"\n" * (2**15 + 512))))
    words = "^x in .*a.tgz: larger than a corpus archive should be"
    assert_error(words, archives.verses_within, tmp_path / "a.tgz", "")


def test_paths_that_lead_outside_are_read_and_not_written(tmp_path):
    inside, name = tmp_path / "inside", "../outside"
    inside.mkdir()
    with zipfile.ZipFile(inside / "a.zip", "w") as archive:
        archive.writestr(name, "un\n")
    assert list(lines_within(inside / "a.zip", [name])) == ["un"]
    assert [path.name for path in tmp_path.rglob("*")] == ["inside", "a.zip"]


@pytest.mark.parametrize("bomb", [b"\n" * 2**18, b"word " * 2**16, b"one\n" * 2**16], ids=["empty", "a line", "lines"])
def test_bombs_end_at_a_size(tmp_path, monkeypatch, bomb):
    """256 kB out of 300 bytes, with 64 kB for the 16 MB that are allowed of an archive, and of a line."""
    assert archives.LEAST == text.LONGEST == 2**24 and archives.FACTOR == 100
    monkeypatch.setattr(archives, "LEAST", 2**16)
    monkeypatch.setattr(text, "LONGEST", 2**16)
    (tmp_path / "a.gz").write_bytes(gzip.compress(bomb))
    read = 0
    with pytest.raises(PreparationError, match="a.gz: larger than .*; unpack .*--train|longer than 65,536"):
        for line in lines_within(tmp_path / "a.gz", []):
            read += len(line) + 1
    assert read <= 2**16


def test_a_mirrors_bomb_ends_at_a_size(tmp_path, monkeypatch):
    """It would fill the disk before its checksum is seen to be wrong."""
    monkeypatch.setattr(archives, "LEAST", 2**16)
    bomb = fetching.Remote("thing", hashlib.sha256().hexdigest(), 9)
    (tmp_path / "thing.gz").write_bytes(gzip.compress(bytes(2**20)))
    assert_error("thing.gz: larger than a corpus", fetching.fetch, bomb, tmp_path / "cache", tmp_path)
    assert not files_of(tmp_path / "cache")


@pytest.mark.parametrize(
    "old, new",
    [
        ('"thing-1.tar.gz"]\n', '"../../thing-1.tar.gz"]\n'),
        ('"thing-1.tar.gz"]\n', '"/etc/thing"]\n'),
        ('"thing-1.tar.gz"', '".."'),
        ('sha256 = "', 'sha256 = "../../../../'),
    ],
)
def test_a_registry_names_no_file_elsewhere(tmp_path, old, new):
    """They would be written into the cache under that name."""
    registry(tmp_path, packed(TABLE.encode()))
    file = tmp_path / "registry.toml"
    changed = file.read_text().replace(old, new)
    assert changed != file.read_text()
    file.write_text(changed)
    assert_error("has to be the name of a file, without folders", corpora.read_registry, file)


def test_downloads_without_a_checksum_are_https(server, tmp_path, monkeypatch):  # noqa: F811
    """Also where a redirection leads; with a checksum nobody can exchange the file."""
    monkeypatch.setattr(fetching, "LOCAL", ())
    unknown = fetching.Remote("thing-1.tar.gz", url=server.url + "/file")
    assert_error("/file is not https, .*its sha256.*--mirror", fetching.fetch, unknown, tmp_path, None)
    moved = fetching.Remote("thing-1.tar.gz", url=server.url + "/moved")
    assert_error("/moved is not https", fetching.fetch, moved, tmp_path, None)
    assert not files_of(tmp_path)
    redirected = ["https://example.org/a", "http://example.org/a", "https://example.org/b"]
    assert_error("http://example.org/a is not https", fetching.refuse_insecure, redirected, unknown)
    fetching.refuse_insecure(redirected[::2], unknown)


def test_the_registry_downloads_by_https_or_from_the_package_index():
    known = corpora.read_registry(prepare.Path(prepare.__file__).with_name("corpora.toml"))
    sources = [entry for corpus in known.values() for entry in corpus["files"].items()]
    assert len(sources) > 10
    assert all("package" in source or source["url"].startswith("https://") for _, source in sources)
    assert all("package" in source or source["url"].endswith(f"/{name}") for name, source in sources)


def test_a_word_commands_no_terminal(tmp_path, capsys):
    words = {"a.fr": "a\x1b[2J@@", "a.th": "b"}
    texts = [write(tmp_path / name, [f"{word} {number}" for number in range(99)]) for name, word in words.items()]
    languages = ["--source-lang", "fr", "--target-lang", "th", "--workers", "1"]
    options = ["--pretokenised", "--held-out", "1", "--output", str(tmp_path / "out"), *languages]
    assert prepare.main(["--train", *map(str, texts), *options]) == 1
    assert "has the word a?[2J@@, and" in capsys.readouterr().err


MANIFESTS = ["[]", '"text"', "{}", '{"stages": []}', '{"stages": {"raw": {}}}', "[" * 100_000]
MANIFESTS += [json.dumps({"stages": {"raw": {"options": {}, "files": ["a"]}}})]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest[:30])
def test_a_manifest_of_others(tmp_path, manifest):
    (tmp_path / "manifest.json").write_text(manifest)
    assert_error("manifest.json: not a manifest of this command; delete it", Stages, tmp_path, {})
    assert (tmp_path / "manifest.json").read_text() == manifest


def test_a_manifest_overwrites_nothing_elsewhere(tmp_path):
    """Its files are looked at; what is removed and made are the stages' own folders."""
    precious, output = tmp_path / "precious", tmp_path / "out"
    precious.write_text("precious")
    output.mkdir()
    files = {"../../precious": {"bytes": 8}, str(precious): {"bytes": 1}}
    stages = {name: {"options": {}, "files": files} for name in (*ORDER, "..", "../precious")}
    (output / "manifest.json").write_text(json.dumps({"stages": stages}))
    Stages(output, {}).run("raw", {}, lambda folder: {})
    assert precious.read_text() == "precious" and {path.name for path in tmp_path.iterdir()} == {"precious", "out"}
