"""data-prep: splitting, cleaning, tokenising, subwords, stages, downloads, and what the command says to bad input."""

import contextlib
import errno
import gzip
import hashlib
import http.server
import io
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import unicodedata
import zipfile
from pathlib import Path

import pytest

DATA_PREP = Path(__file__).resolve().parents[2] / "data-prep"


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    """The folder's modules import each other as siblings, as they do when the command runs."""
    monkeypatch.syspath_prepend(str(DATA_PREP))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def write(path: Path, lines) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


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


# ---- splitting


def bare(sentence: str) -> tuple[str, ...]:
    """Its words without case and punctuation, written differently from the code under test."""
    letters = "".join(c if unicodedata.category(c)[0] in "LN" else " " for c in sentence.casefold())
    return tuple(letters.split())


def split(tmp_path, name, pairs, languages=("en", "fr"), most=None, size=40):
    """The three parts as `extract` writes them, each a list of (en, fr)."""
    import corpora
    from cleaning import Cleaner
    from extracting import extract

    columns = dict(zip(("en", "fr"), zip(*pairs)))
    files = tuple(write(tmp_path / name / f"all.{language}", columns[language]) for language in languages)
    folder = tmp_path / name / "raw"
    folder.mkdir()
    source = corpora.OwnFiles({"train": files}, languages)
    counts = extract(source, folder, Cleaner(60, 3), size, most)
    texts = {
        part: list(zip(*((folder / f"{part}.{code}").read_text("utf-8").splitlines() for code in ("en", "fr"))))
        for part in ("train", "valid", "test")
    }
    assert counts["in"] == len(pairs)
    assert {part: len(text) for part, text in texts.items()} == {part: counts[part] for part in texts}
    assert sum(counts["dropped"].values()) + sum(map(len, texts.values())) == len(pairs) or most
    return texts


def test_no_held_out_sentence_is_trained_on(tmp_path):
    texts = split(tmp_path, "a", sentences(900))
    assert len(texts["valid"]) == len(texts["test"]) == 40 and len(texts["train"]) > 600
    for side in (0, 1):
        trained = {bare(pair[side]) for pair in texts["train"]}
        held = [bare(pair[side]) for pair in texts["valid"] + texts["test"]]
        assert not trained.intersection(held)
        assert len(set(held)) == len(held)  # no sentence is held out twice


def test_the_split_depends_on_the_sentences_only(tmp_path):
    pairs = sentences(900)
    texts = split(tmp_path, "a", pairs)
    assert split(tmp_path, "b", pairs, ("fr", "en")) == texts
    shuffled = split(tmp_path, "c", random.Random(2).sample(pairs, len(pairs)))
    assert shuffled["test"] == texts["test"] and shuffled["valid"] == texts["valid"]
    assert sorted(shuffled["train"]) == sorted(texts["train"]) != texts["train"][::-1]


def test_a_sample_is_fixed_and_leaves_the_held_out_pairs_alone(tmp_path):
    pairs = sentences(900)
    texts, few = split(tmp_path, "a", pairs), split(tmp_path, "b", pairs, most=50)
    assert few["test"] == texts["test"] and len(few["train"]) == 50
    assert [pair for pair in texts["train"] if pair in set(few["train"])] == few["train"] != texts["train"][:50]


def test_large_corpora_are_split_without_sorting_all_of_them():
    import splitting

    pairs = [(f"sentence {number % 4000}", f"satz {number}") for number in range(12000)]  # three translations of each

    def rank(text):
        return hashlib.blake2b(text.encode(), digest_size=8).digest()

    chosen = {first: min((pair for pair in pairs[int(first[9:]) :: 4000]), key=lambda pair: rank("\n".join(pair)))
              for first in {pair[0] for pair in pairs}}  # fmt: skip
    expected = [chosen[first] for first in sorted(chosen, key=rank)]
    for count in (1, 80):
        assert splitting._first_by_hash(iter(pairs), count) == expected[:count]
    valid, test = splitting.held_out(pairs, 20)
    assert test + valid == expected[:40]


def test_held_out_files_of_the_user_stay_as_they_are(tmp_path):
    import corpora
    from cleaning import Cleaner
    from extracting import extract

    test = [("Hello there!", "Bonjour !"), ("", ""), ("Hello there!", "Bonjour !")]
    train = sentences(300) + [("hello there", "salut toi"), ("good day to you", "bonjour")]
    files = {
        part: tuple(write(tmp_path / f"{part}.{code}", side) for code, side in zip(("en", "fr"), zip(*pairs)))
        for part, pairs in (("train", train), ("test", test))
    }
    folder = tmp_path / "raw"
    folder.mkdir()
    counts = extract(corpora.OwnFiles(files, ("en", "fr")), folder, Cleaner(60, 9), None, None)
    assert (folder / "test.en").read_text() == "Hello there!\n\nHello there!\n"
    assert "ello there" not in (folder / "train.en").read_text() and "bonjour" not in (folder / "train.fr").read_text()
    assert counts["valid"] == 15  # a twentieth


# ---- text and cleaning


def test_lines_end_at_newlines_only(tmp_path):
    from text import read_lines

    (tmp_path / "text").write_bytes("\ufeffun\u2028deux\x0b\ntrois".encode())
    assert list(read_lines(tmp_path / "text")) == ["un\u2028deux\x0b", "trois"]


def test_tidy():
    from text import tidy

    assert tidy("  e\u0301te\u0301\u00a0:\u202foui\u2028\r\n") == "été : oui"


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        (("a b", ""), "empty"),
        (("", "a b"), "empty"),
        (("a b c d e", "a b c d e f"), "too long"),
        (("a b c d", "a"), "length ratio"),
        (("a", "a b c d"), "length ratio"),
        (("a b c", "a"), None),
        (("a b c d e", "a b"), None),
        (("y", "x"), None),
    ],
)
def test_cleaning(pair, reason):
    from cleaning import Cleaner

    cleaner = Cleaner(max_length=5, max_ratio=3)
    kept = list(cleaner.clean([("x", "y"), pair]))
    assert kept == [("x", "y")] + ([] if reason else [pair])
    assert cleaner.dropped == ({reason: 1} if reason else {})


@pytest.mark.parametrize("size", [0, 1, 5, 3000])
def test_duplicates_are_dropped_piece_by_piece(tmp_path, monkeypatch, size):
    import cleaning

    monkeypatch.setattr(cleaning, "AT_A_TIME", 100)
    generator = random.Random(1)
    pairs = [(str(generator.randrange(900)), "b", f"by {number}") for number in range(size)]
    first = {pair[:2]: pair for pair in reversed(pairs)}
    dropped = cleaning.Counter()
    assert list(cleaning.without_repeats(lambda: iter(pairs), tmp_path, dropped)) == sorted(first.values(), key=pairs.index)
    assert dropped["duplicate"] == size - len(first) and not list(tmp_path.iterdir())


# ---- tokens and subwords

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


@pytest.mark.parametrize("language", ["en", "fr"])
def test_tokens_and_subwords_can_be_undone(tmp_path, language):
    import subwords
    from sacremoses import MosesDetokenizer
    from tokenising import tokenise_lines

    tokens = tokenise_lines(ORDINARY[language], language, lowercase=False)
    assert all(" &apos;" in line or "&apos; " in line for line in tokens[:1])  # as Moses escapes them
    codes = tmp_path / "codes"
    assert 0 < subwords.learn([write(tmp_path / "text", tokens * 3)], codes, 40) <= 40
    pieces = subwords.segment_lines(tokens, codes)
    assert all("@@ " in line for line in pieces)
    assert [line.replace("@@ ", "") for line in pieces] == tokens
    assert [MosesDetokenizer(lang=language).detokenize(line.split()) for line in tokens] == ORDINARY[language]
    assert tokenise_lines(["Oh Là"], language, lowercase=True) == ["oh là"]


# Words that Moses' rules treat by what is beside them, or that stand for its own marks.
TRICKY = """Mr. No. Nr. z.B. usw. p. U.S. 5 5, 1,000 a, , ' 'tis dogs' don't l'homme (x) [y] "q" q." q," ... .. a.b .5 5.
    DOTMULTI MULTI , ,, a,,b é. ª ⓐ ⓐ. x/y & < > | ` `` '' a-b - -- 50 % ?! A. 9' 9's ,a 's €5 £. №5 ²."""


@pytest.mark.parametrize("language", ["en", "fr", "de", "it", "cs"])
def test_remembering_words_changes_nothing(language):
    from sacremoses import MosesPunctNormalizer, MosesTokenizer
    from tokenising import _TO_NORMALISE, tokeniser

    generator = random.Random(3)
    alphabet = "abcé19_-.,?!' " * 4 + "\"`´’‘“”„«»–—…;:()%º。\u00ad\u00a0<>&|[]$€"
    normalise, tokenise = MosesPunctNormalizer(lang=language).normalize, MosesTokenizer(lang=language).tokenize
    texts = ["".join(generator.choices(alphabet, k=generator.randrange(16))) for _ in range(1500)]
    texts += [" ".join(generator.choices(TRICKY.split(), k=generator.randrange(7))) for _ in range(1500)]
    skipped = [text for text in texts if not _TO_NORMALISE.search(text)]
    assert 300 < len(skipped) < 2700
    for text in texts:
        assert tokeniser(language)(text) == tokenise(normalise(text + "\n"), return_str=True)
        assert tokeniser(language, normalise=False)(text) == tokenise(text, return_str=True)


def test_files_are_those_of_the_libraries_commands(tmp_path):
    """sacremoses and subword-nmt on the command line, one after the other, byte by byte."""
    import subwords
    from tokenising import tokenise_lines

    generator = random.Random(5)
    words = [word for lines in ORDINARY.values() for line in lines for word in line.split()] + TRICKY.split()
    lines = [" ".join(generator.choices(words, k=generator.randrange(1, 12))) for _ in range(300)]

    def command(name, *arguments, text):
        entry = {"sacremoses": "from sacremoses.cli import cli; cli()", "subword-nmt": "from subword_nmt.subword_nmt import main; main()"}
        done = subprocess.run([sys.executable, "-c", entry[name], *arguments], input=text.encode(), capture_output=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    text = "".join(f"{line}\n" for line in lines)
    tokens = command("sacremoses", "-q", "-l", "fr", "tokenize", text=command("sacremoses", "-q", "-l", "fr", "normalize", text=text))
    assert "".join(f"{line}\n" for line in tokenise_lines(lines, "fr", False)) == tokens
    expected = command("subword-nmt", "learn-bpe", "-s", "200", text=tokens)
    subwords.learn([write(tmp_path / "tokens", tokens.splitlines())], tmp_path / "codes", 200)
    assert (tmp_path / "codes").read_text(encoding="utf-8") == expected
    pieces = command("subword-nmt", "apply-bpe", "-c", str(tmp_path / "codes"), text=tokens)
    assert "".join(f"{line}\n" for line in subwords.segment_lines(tokens.splitlines(), tmp_path / "codes")) == pieces


def test_joint_codes_do_not_depend_on_the_direction(tmp_path):
    import subwords

    texts = [write(tmp_path / str(side), [pair[side] for pair in sentences(200)]) for side in (0, 1)]
    subwords.learn(texts, tmp_path / "codes", 50)
    subwords.learn(texts[::-1], tmp_path / "codes reversed", 50)
    assert (tmp_path / "codes").read_text() == (tmp_path / "codes reversed").read_text()


# ---- stages


class Recorder:
    """Runs three stages and notes which of them did anything."""

    def __init__(self, output: Path):
        self.output, self.done = output, []

    def run(self, fail="", **options):
        import stages

        self.done.clear()
        run = stages.Stages(self.output, {}, say=lambda line: None)
        for name in ("raw", "tok", "bpe"):
            run.run(name, {name: options.get(name)}, lambda folder, name=name: self.make(folder, name, fail, options))
        return self.done

    def make(self, folder, name, fail, options):
        self.done.append(name)
        (folder / "file").write_text(f"{name} {options}")
        if name == fail:
            raise OSError(errno.ENOSPC, "No space left on device")
        return {}


def test_stages_are_done_once_and_again_when_something_before_them_changes(tmp_path):
    recorder = Recorder(tmp_path / "out")
    assert recorder.run() == ["raw", "tok", "bpe"]
    assert recorder.run() == []
    assert recorder.run(tok=1) == ["tok", "bpe"]
    assert recorder.run(tok=1) == []
    assert recorder.run(tok=1, bpe=2) == ["bpe"]
    (tmp_path / "out/tok/file").write_text("cut")
    assert recorder.run(tok=1, bpe=2)[0] == "tok"
    shutil.rmtree(tmp_path / "out/raw")
    assert recorder.run(tok=1, bpe=2)[0] == "raw"
    recorded = json.loads((tmp_path / "out/manifest.json").read_text())["stages"]["bpe"]
    content = (tmp_path / "out/bpe/file").read_bytes()
    assert recorded["options"]["bpe"] == 2
    assert recorded["files"]["file"] == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def test_a_stage_that_fails_leaves_nothing_half_written(tmp_path):
    recorder = Recorder(tmp_path / "out")
    recorder.run()
    before = (tmp_path / "out/tok/file").read_text()
    with pytest.raises(OSError):
        recorder.run(fail="tok", tok=1)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["bpe", "manifest.json", "raw", "tok"]
    assert (tmp_path / "out/tok/file").read_text() == before
    assert recorder.run(tok=1) == ["tok", "bpe"]


WAITING = "another process writes there; waiting until it has ended\n"

# Holds the lock, with a worker whose number it prints, until its input ends.
HOLDER = """
import os, pathlib, sys
from concurrent.futures import ProcessPoolExecutor
import locking, parallel
with locking.locked(pathlib.Path(sys.argv[1]), "out"), ProcessPoolExecutor(1, initializer=parallel.start_worker) as pool:
    print(pool.submit(os.getpid).result(), flush=True)
    sys.stdin.read()
"""


def start(script, *arguments) -> subprocess.Popen:
    """A process that has the modules of data-prep."""
    env = {**os.environ, "PYTHONPATH": str(DATA_PREP)}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_lock_is_waited_for_and_leaves_nothing(tmp_path):
    lock = tmp_path / "out" / ".lock"
    first = start(HOLDER, lock)
    assert first.stdout.readline()
    others = [start(HOLDER, lock) for _ in range(3)]
    assert [process.stderr.readline() for process in others] == [f"out: {WAITING}"] * 3
    assert lock.exists()
    for process in (first, *others):
        process.stdin.close()
    assert [process.wait() for process in (first, *others)] == [0] * 4
    assert not lock.parent.exists()


def test_a_lock_does_not_survive_its_process(tmp_path):
    """Nor do the workers of one that is killed: they would write on, or wait for ever."""
    killed = start(HOLDER, tmp_path / ".lock")
    worker = Path("/proc", killed.stdout.readline().strip())
    killed.kill()
    killed.wait()
    assert start(HOLDER, tmp_path / ".lock").communicate("")[1] == ""
    since = time.monotonic()
    while worker.exists():
        assert time.monotonic() - since < 60
        time.sleep(0.1)


def test_folders_of_others_are_not_replaced(tmp_path):
    from errors import PreparationError

    write(tmp_path / "raw" / "thesis.tex", ["precious"])
    with pytest.raises(PreparationError, match="choose another --output"):
        Recorder(tmp_path).run()
    assert (tmp_path / "raw" / "thesis.tex").exists()


# ---- fetching

CONTENT = random.Random(4).randbytes(300_000)


class Server(http.server.ThreadingHTTPServer):
    """Serves CONTENT at /file, and an index page at /simple/thing/.

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
        if self.path != "/file":
            return self.send_error(404)
        asked = self.headers.get("Range") if self.server.ranges else None
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        self.answer(206 if asked else 200, CONTENT[start:], "application/octet-stream")

    def answer(self, status, body, kind):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.server.answers.wait()
        self.wfile.write(body[: self.server.cut])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with contextlib.closing(Server()) as running:
        running.close = running.server_close
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def remote(url="", package="", content=CONTENT):
    import fetching

    return fetching.Remote("thing-1.tar.gz", hashlib.sha256(content).hexdigest(), len(content), url, package)


def test_a_cut_download_goes_on_where_it_stopped(server, tmp_path):
    import fetching
    from errors import PreparationError

    server.cut = 100_000
    with pytest.raises(PreparationError, match="run the command again to go on"):
        fetching.fetch(remote(server.url + "/file"), tmp_path, None)
    (have,) = [path.stat().st_size for path in tmp_path.rglob("*.partial")]
    assert 80_000 < have <= 100_000
    assert not list(tmp_path.rglob("*.gz"))
    server.cut = None
    assert fetching.fetch(remote(server.url + "/file"), tmp_path, None).read_bytes() == CONTENT
    assert server.requested == [("/file", None), ("/file", f"bytes={have}-")]
    fetching.fetch(remote(server.url + "/file"), tmp_path, None)
    assert len(server.requested) == 2  # from the cache


def test_a_server_without_ranges_sends_all_of_it_again(server, tmp_path):
    import fetching
    from errors import PreparationError

    server.cut, server.ranges = 100_000, False
    with pytest.raises(PreparationError):
        fetching.fetch(remote(server.url + "/file"), tmp_path, None)
    server.cut = None
    assert fetching.fetch(remote(server.url + "/file"), tmp_path, None).read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused_and_not_kept(server, tmp_path):
    import fetching
    from errors import PreparationError

    other = remote(server.url + "/file", content=CONTENT[::-1])
    with pytest.raises(PreparationError, match="wrong checksum, sha256 .* instead of"):
        fetching.fetch(other, tmp_path, None)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_index_pip_is_configured_with_is_asked(server, tmp_path, monkeypatch):
    import fetching
    from errors import PreparationError

    monkeypatch.setenv("PIP_INDEX_URL", server.url + "/simple")
    assert fetching.fetch(remote(package="thing"), tmp_path, None).read_bytes() == CONTENT
    assert server.requested == [("/simple/thing/", None), ("/file", None)]
    with pytest.raises(PreparationError, match="package index could not be asked.*--mirror"):
        fetching.fetch(remote(package="unknown", content=b"other"), tmp_path, None)


def test_two_downloads_of_a_file_at_a_time(server, tmp_path):
    """The second waits for the first and takes what it has brought."""
    server.answers.clear()
    script = "import pathlib, sys, fetching; fetching.fetch(eval(sys.argv[1], vars(fetching)), pathlib.Path(sys.argv[2]), None)"
    first = start(script, remote(server.url + "/file"), tmp_path)
    while not server.requested and first.poll() is None:
        time.sleep(0.1)
    second = start(script, *first.args[3:])
    assert second.stderr.readline().endswith(f"thing-1.tar.gz: {WAITING}")
    server.answers.set()
    assert [process.wait() for process in (first, second)] == [0, 0]
    assert server.requested == [("/file", None)]
    assert [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()] == [CONTENT]


def test_errors_of_the_network_are_one_line(server, tmp_path):
    import fetching
    from errors import PreparationError

    with pytest.raises(PreparationError, match="404.*--mirror") as missing:
        fetching.fetch(remote(server.url + "/elsewhere"), tmp_path, None)
    with pytest.raises(PreparationError, match="Connection refused.*--mirror") as refused:
        fetching.fetch(remote("http://127.0.0.1:1/file"), tmp_path, None)
    assert "\n" not in f"{missing.value}{refused.value}"


def test_a_full_disk_is_noticed_before_the_download(server, tmp_path, monkeypatch):
    import fetching
    from errors import PreparationError

    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**6, 10**6 - 9, 9))
    with pytest.raises(PreparationError, match="no disk space for its 300,000 bytes"):
        fetching.fetch(remote(server.url + "/file"), tmp_path, None)
    assert not server.requested


# ---- corpora of a registry, from a mirror

TABLE = "".join(f"{a}\t{b}\tby {number}\n" for number, (a, b) in enumerate(sentences(300)))


def packed(table: bytes) -> bytes:
    """A tar.gz with a zip with a table in it, as Tatoeba comes."""
    inner, outer = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("table.txt", table)
    with tarfile.open(fileobj=outer, mode="w:gz") as archive:
        entry = tarfile.TarInfo("thing-1/inner.zip")
        entry.size = len(inner.getvalue())
        archive.addfile(entry, io.BytesIO(inner.getvalue()))
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


def test_a_corpus_out_of_archives_keeps_its_contributors(tmp_path):
    import corpora
    from cleaning import Cleaner
    from extracting import extract

    registry(tmp_path, packed(TABLE.encode()))
    corpus = corpora.find("thing", ("fr", "en"), tmp_path / "registry.toml")
    corpus.fetch(tmp_path / "cache", tmp_path / "mirror")
    (tmp_path / "raw").mkdir()
    extract(corpus, tmp_path / "raw", Cleaner(60, 3), None, None)
    by_line = {f"by {number}": pair for number, pair in enumerate(sentences(300))}
    for part in ("train", "valid", "test"):
        columns = [(tmp_path / f"raw/{part}.{name}").read_text().splitlines() for name in ("en", "fr", "attribution")]
        assert columns[0] and all(by_line[by] == (first, second) for first, second, by in zip(*columns))


def test_gz_texts(tmp_path):
    from archives import lines_within

    (tmp_path / "text.gz").write_bytes(gzip.compress("un\ndeux\u2028trois\n".encode()))
    assert list(lines_within(tmp_path / "text.gz", [])) == ["un", "deux\u2028trois"]


# ---- bad input to the command


def run(capsys, tmp_path, *arguments, langs=("fr", "en")) -> tuple[int, str]:
    import prepare

    options = [*arguments, "--output", tmp_path / "out", "--cache", tmp_path / "cache"]
    for option, code in zip(("--source-lang", "--target-lang"), langs):
        options += [option, code] if code else []
    status = prepare.main([str(option) for option in options])
    return status, capsys.readouterr().err


def assert_refused(outcome, tmp_path, *parts):
    status, message = outcome
    assert status == 1
    assert message.startswith("prepare.py: ") and message.count("\n") == 1
    for part in parts:
        assert part in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("first", "second", "parts"),
    [
        (b"un\ndeux\n", b"one\n", ["a.fr has 2 lines", "b.en has 1", "align"]),
        (b"un\nd\xe9ux\n", b"one\ntwo\n", ["a.fr, line 2", "not valid UTF-8 at byte 2", "iconv"]),
        ("un\n".encode("utf-16"), b"one\n", ["a.fr, line 1", "not valid UTF-8"]),
        (b"", b"one\n", ["a.fr: the file is empty"]),
        (b"un\n", b"", ["b.en: the file is empty"]),
        (b"un\n", None, ["b.en: no such file"]),
        (b"\n \n", b"one\ntwo\n", ["only 0 pairs are clean", "'empty': 2", "give more text"]),
    ],
)
def test_bad_files(capsys, tmp_path, first, second, parts):
    for name, content in (("a.fr", first), ("b.en", second)):
        if content is not None:
            (tmp_path / name).write_bytes(content)
    assert_refused(run(capsys, tmp_path, "--train", tmp_path / "a.fr", tmp_path / "b.en"), tmp_path, *parts)


@pytest.mark.parametrize(
    ("arguments", "langs", "parts"),
    [
        (["nonsense"], ("fr", "en"), ["no corpus is called nonsense", "iwslt14, multi30k, tatoeba"]),
        (["tatoeba"], ("de", "en"), ["tatoeba has no de-en", "en-fr, en-es"]),
        (["tatoeba"], ("fr", None), ["--target-lang is missing"]),
        (["tatoeba"], (None, "fr"), ["--source-lang is missing"]),
        (["tatoeba"], ("fr", "fr"), ["both fr"]),
        (["tatoeba"], ("../fr", "en"), ["no language code"]),
        ([], ("fr", "en"), ["--list", "--train SOURCE TARGET"]),
        (["tatoeba", "--train", "a", "b"], ("fr", "en"), ["either a corpus"]),
        (["tatoeba", "--test", "a", "b"], ("fr", "en"), ["--valid and --test go with --train"]),
        (["tatoeba", "--bpe-operations", "0"], ("fr", "en"), ["--bpe-operations", "at least 1", "--help"]),
        (["tatoeba", "--mirror", "/nowhere"], ("fr", "en"), ["/nowhere: has no file nmt-0.0.6.tar.gz"]),
        (["tatoeba", "--registry", "/nowhere"], ("fr", "en"), ["/nowhere: not readable as a registry"]),
    ],
)
def test_bad_options(capsys, tmp_path, arguments, langs, parts):
    assert_refused(run(capsys, tmp_path, *arguments, langs=langs), tmp_path, *parts)


GOOD = packed(TABLE.encode())


@pytest.mark.parametrize(
    ("archive", "table", "parts"),
    [
        (GOOD[: len(GOOD) // 2], None, ["thing-1/inner.zip in", "truncated or damaged archive", "fetch it again"]),
        (packed(b"one\tun\tby 1\ntwo\n"), None, ["table.txt, line 2: fewer columns"]),
        (packed(b"one\tun\tby 1\n\xff\tdeux\tby 2\n"), None, ["table.txt in", "line 2: not valid UTF-8"]),
        (GOOD, '["thing-1.tar.gz", "elsewhere"]', ["holds no file elsewhere"]),
    ],
)
def test_bad_archives(capsys, tmp_path, archive, table, parts):
    options = registry(tmp_path, archive, *([table] if table else []))
    assert_refused(run(capsys, tmp_path, *options), tmp_path, *parts)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda content: content[:-100], ["truncated", "of", "bytes; delete it and fetch it again"]),
        (lambda content: content[:-1] + b"?", ["wrong checksum"]),
    ],
)
def test_a_mirror_with_another_file(capsys, tmp_path, change, parts):
    options = registry(tmp_path, GOOD)
    file = tmp_path / "mirror" / "thing-1.tar.gz"
    file.write_bytes(change(file.read_bytes()))
    assert_refused(run(capsys, tmp_path, *options), tmp_path, "thing-1.tar.gz", *parts)


def test_no_disk_space(capsys, tmp_path, monkeypatch):
    import pipeline

    options = registry(tmp_path, GOOD)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**6, 10**6 - 9, 9))
        assert_refused(run(capsys, tmp_path, *options), tmp_path, "bytes of disk space, 9 are free")

    def fill_up(source, folder, *rest):
        write(folder / "train.en", itertools.repeat("half a file", 9))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pipeline, "extract", fill_up)
    assert_refused(run(capsys, tmp_path, *options), tmp_path, "no disk space left")


def test_list(capsys):
    import prepare

    assert prepare.main(["--list"]) == 0
    listing = capsys.readouterr().out
    for expected in ("tatoeba:", "en-fr, en-es (either way)", "CC BY 2.0 FR", "tatoeba.org", "multi30k:", "de-en"):
        assert expected in listing


# ---- corpora as published


def segments(lines) -> str:
    return '<?xml version="1.0"?>\n<doc>\n' + "".join(f'<seg id="{n}"> {line} </seg>\n' for n, line in enumerate(lines)) + "</doc>\n"


def test_the_standard_split_of_iwslt14(tmp_path):
    """An archive of that form, against the steps of fairseq's prepare-iwslt14.sh written out."""
    import prepare
    from sacremoses import MosesTokenizer

    generator = random.Random(6)
    words = "der die das Haus, sagte \"gut\" und l'Homme (Applaus) z.B. 5,5".split()
    texts = {"de": [], "en": []}
    for number in range(300):
        for language, lines in texts.items():
            lines.append(" ".join(generator.choices(words, k=generator.randrange(0 if number % 9 else 100, 12 if number % 9 else 200))))
    texts["de"][17] = texts["de"][16]
    texts["en"][17] = texts["en"][16]  # a duplicate
    sets = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
    with tarfile.open(tmp_path / "de-en.tgz", "w:gz") as archive:
        for language, lines in texts.items():
            talk = ["<url>http://ted.com</url>", "<keywords>talks</keywords>", "<talkid>1</talkid>", f"<title>{lines[0]}</title>",
                    f"<description>{lines[1]}</description>", *lines[2:]]  # fmt: skip
            contents = {f"train.tags.de-en.{language}": "\n".join(talk) + "\n"}
            contents |= {f"IWSLT14.{name}.de-en.{language}.xml": segments([f"{name} it’s {language}"] * 3) for name in sets}
            for name, text in contents.items():
                entry = tarfile.TarInfo(f"de-en/{name}")
                entry.size = len(text.encode())
                archive.addfile(entry, io.BytesIO(text.encode()))
    options = ["--source-lang", "de", "--target-lang", "en", "--lowercase", "--bpe-operations", "50", "--workers", "1"]
    assert prepare.main(["iwslt14", *options, "--mirror", str(tmp_path), "--output", str(tmp_path / "out")]) == 0

    tokenise = {language: MosesTokenizer(lang=language).tokenize for language in texts}
    pairs = [[tokenise[language](line, return_str=True).lower() for language, line in zip(texts, pair)] for pair in zip(*texts.values())]
    lengths = [[len(side.split()) for side in pair] for pair in pairs]
    kept = [pair for pair, (a, b) in zip(pairs, lengths) if 1 <= min(a, b) and max(a, b) <= 175 and max(a, b) <= 1.5 * min(a, b)]
    assert 60 < len(kept) < 280
    expected = {
        "train": [pair for number, pair in enumerate(kept, 1) if number % 23],
        "valid": [pair for number, pair in enumerate(kept, 1) if number % 23 == 0],
        "test": [[f"{name.lower()} it {'&apos; s' if language == 'de' else '&apos;s'} {language}" for language in texts]
                 for name in sets for _ in range(3)],
    }  # fmt: skip
    for part, pairs in expected.items():
        folder = tmp_path / "out" / ("clean" if part == "train" else "tok")
        found = [(folder / f"{part}.{language}").read_text(encoding="utf-8").splitlines() for language in texts]
        assert [list(pair) for pair in zip(*found)] == pairs


def test_files_without_a_known_checksum(server, tmp_path, capsys):
    """They are taken as they come, resumed all the same, and their checksum is shown."""
    import fetching
    from errors import PreparationError

    unknown = fetching.Remote("thing-1.tar.gz", url=server.url + "/file")
    server.cut = 100_000
    with pytest.raises(PreparationError, match="run the command again to go on"):
        fetching.fetch(unknown, tmp_path, None)
    server.cut = None
    assert fetching.fetch(unknown, tmp_path, None).read_bytes() == CONTENT
    assert server.requested[1][1].startswith("bytes=")
    assert hashlib.sha256(CONTENT).hexdigest() in capsys.readouterr().out


def test_texts_of_several_files_follow_each_other(tmp_path):
    import corpora

    record = """
        [thing]
        title = "A thing"
        licence = attribution = homepage = "-"
        files = { "a.en" = {url = "-"}, "b.en" = {url = "-"}, "a.fr" = {url = "-"}, "b.fr" = {url = "-"}, "other" = {url = "-"} }
        [thing.pairs.en-fr.texts]
        train = { en = [["a.en"], ["b.en"]], fr = [["a.fr"], ["b.fr"]] }
    """.replace('licence = attribution = homepage = "-"', "\n".join(f'{key} = "-"' for key in ("licence", "attribution", "homepage")))
    (tmp_path / "registry.toml").write_text(record)
    for name, lines in {"a.en": ["1", "2"], "b.en": ["3"], "a.fr": ["un", "deux"], "b.fr": ["trois"]}.items():
        write(tmp_path / name, lines)
    corpus = corpora.find("thing", ("fr", "en"), tmp_path / "registry.toml")
    corpus.fetch(tmp_path, tmp_path)
    assert list(corpus.pairs("train")) == [("1", "un"), ("2", "deux"), ("3", "trois")]
    write(tmp_path / "a.fr", ["un"])
    with pytest.raises(Exception, match="a.en and a.fr have different numbers"):
        list(corpus.pairs("train"))
