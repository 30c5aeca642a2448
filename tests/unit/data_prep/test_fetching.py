"""Downloads from a server of the test's own: resumed, verified, once, and what is said when they fail."""

import gzip
import hashlib
import http.server
import random
import re
import shutil
import threading
import time

import pytest
import requests
from preparation import fetching
from preparation.errors import PreparationError
from unit.data_prep.support import FULL_DISK, WAITING, assert_error, files_of, start

CONTENT = random.Random(4).randbytes(300_000)
PIP_SETTINGS = fetching.pip_settings


class Server(http.server.ThreadingHTTPServer):
    """Serves CONTENT at /file, to which /moved leads, and an index page at /simple/thing/.

    `cut` ends an answer after so many bytes, `answers` may hold it back.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.cut, self.ranges, self.requested, self.answers = None, True, [], threading.Event()
        self.answers.set()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requested.append((self.path, self.headers.get("Range")))
        if self.path == "/simple/thing/":
            links = b'<a href="../../other">thing-1.zip</a> <a href="../../file">thing-1.tar.gz</a>'
            return self.answer(200, links, "text/html")
        if self.path == "/moved":
            self.send_response(301)
            self.send_header("Location", "/file")
            return self.end_headers()
        if self.path != "/file":
            return self.send_error(404)
        if self.headers.get("Accept-Encoding") != "identity":  # a compressed answer has other sizes and ranges
            return self.send_error(406)
        asked = self.headers.get("Range") if self.server.ranges else None
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if start == len(CONTENT):
            return self.send_error(416)
        self.answer(206 if asked else 200, CONTENT[start:], "application/x-gzip")

    def answer(self, status, body, kind):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", kind)
        if kind == "application/x-gzip":
            self.send_header("Content-Encoding", "x-gzip")  # as Apache may do: the file is compressed, not the answer
        self.end_headers()
        self.server.answers.wait()
        self.wfile.write(body[: self.server.cut])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(fetching, "pip_settings", dict)  # asking pip takes most of a second
    for name in ("no_proxy", "NO_PROXY"):  # requests takes the first that is set
        monkeypatch.setenv(name, "127.0.0.1")
    with Server() as running:
        threading.Thread(target=running.serve_forever, args=[0.02], daemon=True).start()
        yield running
        running.shutdown()


def remote(url="", package="", content=CONTENT):
    return fetching.Remote("thing-1.tar.gz", hashlib.sha256(content).hexdigest(), len(content), url, package)


@pytest.mark.parametrize("known, ranges", [(True, True), (True, False), (False, True)])
def test_a_cut_download_goes_on_where_it_stopped(server, tmp_path, capsys, known, ranges):
    """A server without ranges sends all of it again. A checksum that is not known is shown."""
    file = remote(server.url + "/file") if known else fetching.Remote("thing-1.tar.gz", url=server.url + "/file")
    server.cut, server.ranges = 100_000, ranges
    assert_error("run the command again", fetching.fetch, file, tmp_path, None)
    (have,) = [path.stat().st_size for path in tmp_path.rglob("*.partial")]
    assert 80_000 < have <= 100_000
    assert not list(tmp_path.rglob("*.gz"))
    server.cut = None
    assert fetching.fetch(file, tmp_path, None).read_bytes() == CONTENT
    assert (hashlib.sha256(CONTENT).hexdigest() in capsys.readouterr().out) != known
    fetching.fetch(file, tmp_path, None)  # from the cache
    assert server.requested == [("/file", None), ("/file", f"bytes={have}-")]
    (arrived,) = tmp_path.rglob("thing-1.tar.gz")
    arrived.rename(f"{arrived}.partial")  # as if it had been killed before this had its name
    server.ranges = True
    assert fetching.fetch(file, tmp_path, None).read_bytes() == CONTENT
    asked = len(server.requested)  # and not again when its checksum has been added to the registry
    assert fetching.fetch(remote(server.url + "/file"), tmp_path, None).read_bytes() == CONTENT
    assert len(server.requested) == asked


def test_a_corrected_address_is_fetched(server, tmp_path):
    """Where the registry has no checksum, nothing else tells which file the cache has."""
    for place in ("/file", "/moved"):
        fetching.fetch(fetching.Remote("thing-1.tar.gz", url=server.url + place), tmp_path, None)
    assert [path for path, _ in server.requested] == ["/file", "/moved", "/file"]  # to which /moved leads


@pytest.mark.parametrize("settings, verify", [({}, True), ({"cert": "/ca.pem"}, "/ca.pem")])
def test_certificates_are_verified(tmp_path, monkeypatch, settings, verify):
    """With None requests would not."""
    monkeypatch.setattr(fetching, "pip_settings", lambda: settings)

    def download(url, partial, file, session):
        assert session.verify == verify
        partial.write_bytes(CONTENT)

    monkeypatch.setattr(fetching, "download", download)
    assert fetching.fetch(remote("https://example.org/file"), tmp_path, None).read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused_and_not_kept(server, tmp_path):
    other = remote(server.url + "/file", content=CONTENT[::-1])
    assert_error("wrong checksum, sha256 .* instead of", fetching.fetch, other, tmp_path, None)
    assert not files_of(tmp_path)
    file = remote(server.url + "/file")
    fetching.fetch(file, tmp_path, None).write_bytes(CONTENT[1:])
    assert_error("truncated, .*; delete it", fetching.fetch, file, tmp_path, None)  # nor one that was damaged later


def test_the_index_pip_is_configured_with_is_asked(server, tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "pip_settings", PIP_SETTINGS)
    monkeypatch.setenv("PIP_INDEX_URL", server.url + "/simple")
    send, waits = requests.Session.send, set()

    def noted(session, request, **options):
        waits.add(options["timeout"])
        return send(session, request, **options)

    monkeypatch.setattr(requests.Session, "send", noted)
    assert fetching.fetch(remote(package="thing"), tmp_path, None).read_bytes() == CONTENT
    assert server.requested == [("/simple/thing/", None), ("/file", None)]
    assert waits == {(15, 60)}  # seconds; by default requests waits for ever
    other = remote(package="unknown", content=b"other")
    assert_error("package index .*--mirror", fetching.fetch, other, tmp_path, None)
    monkeypatch.setenv("PIP_INDEX_URL", "http://name:secret@index.example/simple")
    words, other = "http://index.example/simple is not https, and its checksum is unknown", "thing-2.tar.gz"
    assert_error(words, fetching.fetch, fetching.Remote(other, package="thing"), tmp_path, None)


def test_pip_is_asked_as_it_would_answer(tmp_path, monkeypatch):
    """An empty certificate is none, a quiet pip answers, and a pip.py of the current folder is not pip."""
    (tmp_path / "pip.py").write_text("print('global.cert=/other.pem')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_CERT", "")
    monkeypatch.setenv("PIP_QUIET", "1")
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example/simple")
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://other.example/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    settings = PIP_SETTINGS()
    assert settings["index-url"] == "https://index.example/simple"
    assert settings.get("cert") not in ("", "/other.pem")


# Fetches the file that its first argument is the repr of into the folder of the second.
FETCH = """
import pathlib, sys
from preparation import fetching
fetching.fetch(eval(sys.argv[1], vars(fetching)), pathlib.Path(sys.argv[2]), None)
"""


def test_two_downloads_of_a_file_at_a_time(server, tmp_path):
    """The second waits for the first and takes what it has brought."""
    server.answers.clear()
    first = start(FETCH, remote(server.url + "/file"), tmp_path)
    while not server.requested and first.poll() is None:
        time.sleep(0.1)
    second = start(FETCH, *first.args[3:])
    said = second.stderr.readline()
    assert f"thing-1.tar.gz: process {first.pid} on " in said and said.endswith(WAITING)
    server.answers.set()
    assert [process.wait() for process in (first, second)] == [0, 0]
    assert server.requested == [("/file", None)]
    assert [path.read_bytes() for path in files_of(tmp_path)] == [CONTENT]


def test_errors_of_the_network_are_one_line(server, tmp_path):
    with pytest.raises(PreparationError, match="404.*--mirror") as missing:
        fetching.fetch(remote(server.url.replace("//", "//name:secret@") + "/elsewhere"), tmp_path, None)
    with pytest.raises(PreparationError, match="Connection refused.*--mirror") as refused:
        fetching.fetch(remote("http://name:secret@127.0.0.1:1/file"), tmp_path, None)
    assert not re.search("\n|secret", f"{missing.value}{refused.value}")


def test_a_full_disk_is_noticed_before_the_download(server, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: FULL_DISK)
    file = remote(server.url + "/file")
    assert_error("no disk space for 300,000 bytes", fetching.fetch, file, tmp_path, None)
    assert not server.requested
    partial = tmp_path / file.sha256[:16] / f"{file.name}.partial"
    partial.parent.mkdir(exist_ok=True)
    partial.write_bytes(CONTENT[:-9])
    assert fetching.fetch(file, tmp_path, None).read_bytes() == CONTENT


def test_a_full_disk_is_not_the_fault_of_the_mirrors_file(tmp_path):
    (tmp_path / "thing-1.tar.gz.gz").write_bytes(gzip.compress(CONTENT))
    folder = tmp_path / fetching.sha256(tmp_path / "thing-1.tar.gz.gz")[:16]
    folder.mkdir()
    (folder / "thing-1.tar.gz.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        fetching.fetch(remote(), tmp_path, tmp_path)


def test_a_cache_that_cannot_be_written(tmp_path):
    """Such as that of a container's home folder."""
    (tmp_path / "home").touch()
    words = r"home/\.cache: .* \(Not a directory\); name another .*--cache, .*XDG_"
    assert_error(words, fetching.fetch, remote(), tmp_path / "home/.cache", None)


def test_a_mirror_with_compressed_files(tmp_path):
    mirror, cache = tmp_path / "mirror", tmp_path / "cache"
    mirror.mkdir()
    compressed = mirror / "thing-1.tar.gz.gz"
    compressed.write_bytes(gzip.compress(CONTENT)[:-9])
    assert_error(r"tar\.gz\.gz: truncated or damaged archive", fetching.fetch, remote(), cache, mirror)
    assert not files_of(cache)
    for path, pack in ((compressed, gzip.compress), (mirror / "thing-1.tar.gz", bytes)):
        for wrong, reason in ((CONTENT[1:], "truncated"), (CONTENT[::-1], "wrong checksum")):
            path.write_bytes(pack(wrong))
            words = rf"mirror/{path.name}: {reason}.*; delete it and fetch it again"
            assert_error(words, fetching.fetch, remote(), cache, mirror)
            assert not files_of(cache)
        path.unlink()
    compressed.write_bytes(gzip.compress(CONTENT))
    assert fetching.fetch(remote(), cache, mirror).read_bytes() == CONTENT
    for content in (CONTENT, b"newer"):  # without a checksum, the compressed file tells what the cache has
        compressed.write_bytes(gzip.compress(content))
        assert fetching.fetch(fetching.Remote("thing-1.tar.gz"), cache, mirror).read_bytes() == content
    (mirror / "thing-1.tar.gz").write_bytes(CONTENT)
    assert fetching.fetch(remote(), cache, mirror).parent == mirror
