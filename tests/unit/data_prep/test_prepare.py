"""The command: its list of corpora, and one line for bad files, options, archives, mirrors and full disks."""

import errno
import gzip
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from unittest import mock

import prepare
import pytest
import treebank
from preparation import pipeline
from preparation.subwords import segment_lines
from unit.data_prep.support import FULL_DISK, TABLE, packed, registry, sentences, write

from user_dir.preparation import PreparedText, preparation_of

from support import PROJECT, blocks_of

UNIQUE = list(enumerate((f"{n} le chat dort ici", f"{n} the cat sleeps here") for n in range(400)))


def run(capsys, tmp_path, *arguments, langs=("fr", "en")) -> tuple[int, str]:
    options = [*arguments, "--output", tmp_path / "out", "--cache", tmp_path / "cache"]
    for option, code in zip(("--source-lang", "--target-lang"), langs):
        options += [option, code] if code else []
    status = prepare.main([str(option) for option in options])
    return status, capsys.readouterr().err


def test_the_commands_on_the_pages_have_options_that_there_are():
    folders, seen = [PROJECT / name for name in ("data-prep", "user_dir/tools", "examples")], 0
    for page in (page for folder in folders for page in folder.glob("*.md")):
        text = "".join(blocks_of(page)).replace("\\\n", " ")
        for words in re.findall(r"^python data-prep/prepare\.py (.*)", text, re.M):
            prepare.parser().parse_args(shlex.split(words))
            seen += 1
    assert seen >= 8


def assert_refused(outcome, tmp_path, *parts):
    status, message = outcome
    assert status == 1
    assert message.startswith("prepare.py: ") and message.count("\n") == 1
    for part in parts:
        assert part in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [prepare, treebank], ids=lambda command: command.__name__)
def test_an_empty_output_is_not_the_current_folder(command, capsys, tmp_path, monkeypatch):
    """--output "$data" where the variable is not set."""
    text = write(tmp_path / "text", ["( (S (NN a)) )"])
    monkeypatch.chdir(tmp_path)
    texts = [word for part in ("train", "valid", "test") for word in (f"--{part}", text, text)]
    assert command.main([str(word) for word in (*texts, "--output", "")]) == 1
    assert capsys.readouterr().err.endswith("argument --output: invalid folder value: ''; see --help\n")
    assert [*tmp_path.iterdir()] == [text]


@pytest.mark.parametrize(
    ("arguments", "langs", "parts"),
    [
        (["nonsense"], ("fr", "en"), ["no corpus is called nonsense", "iwslt14, multi30k, tatoeba"]),
        (["tatoeba"], ("de", "en"), ["tatoeba has no de-en", "en-fr, en-es"]),
        (["tatoeba"], ("fr", None), ["--target-lang is missing"]),
        (["tatoeba"], (None, "fr"), ["--source-lang is missing"]),
        (["tatoeba"], ("fr", "fr"), ["both fr"]),
        (["tatoeba"], ("../fr", "en"), ["not a language code"]),
        (["tatoeba"], ("FR", "en"), ["'FR' is not a language code"]),
        (["tatoeba"], ("fr", "EN"), ["'EN' is not a language code"]),
        (["tatoeba"], ("zh-CN", "en"), ["'zh-CN' is not a language code", "fr"]),  # fairseq infers zh and CN
        (["tatoeba"], ("pt_BR", "en"), ["no rules for pt_BR", "give pt"]),
        (["tatoeba"], ("hin_Deva", "en"), ["no rules for hin_Deva", "code of two letters"]),
        (["tatoeba"], ("kor", "en"), ["Moses knows ko,", "give ko"]),
        (["tatoeba"], ("jpn", "en"), ["Moses knows ja,", "give ja"]),
        *[
            (["tatoeba"], (code, "de"), [f"Moses knows {two},"])
            for code, two in zip("eng fra fre ita zho cmn".split(), "en fr fr it zh zh".split())
        ],
        (["tatoeba", "--lower"], ("fr", "en"), ["unrecognized arguments: --lower"]),
        ([], ("fr", "en"), ["--list", "--train SOURCE TARGET"]),
        (["tatoeba", "--train", "a", "b"], ("fr", "en"), ["either a corpus"]),
        (["tatoeba", "--test", "a", "b"], ("fr", "en"), ["--train"]),
        (["tatoeba", "--valid", "a", "b", "--mirror", "/nowhere"], ("fr", "en"), ["--valid and --test need --train"]),
        (["--train", "a", "b", "--train", "c", "d"], ("fr", "en"), ["--train is given twice", "cat"]),
        (["--train", "a.en", "a.fr"], ("fr", "en"), ["--train a.en a.fr: the source language is fr", "exchange"]),
        (["--train", "a", "b", "--test", "a.en", "a.fr"], ("fr", "en"), ["--test a.en a.fr"]),
        (["--train", __file__, __file__], ("fr", "en"), ["for both languages", "name the text of each"]),
        (["tatoeba", "--bpe-operations", "0"], ("fr", "en"), ["--bpe-operations", "at least 1", "--help"]),
        (["tatoeba", "--max-ratio", "nan"], ("fr", "en"), ["--max-ratio", "at least 1"]),
        (["--train", "a", "b", "--mirror", "c"], ("fr", "en"), ["--mirror", "the registry", "omit one"]),
        (["multi30k", "--held-out", "9"], ("de", "en"), ["--held-out", "validation and test set are given"]),
        (["iwslt14", "--held-out", "100"], ("de", "en"), ["--held-out: IWSLT"]),  # its split is published
        (["iwslt14", "--pretokenised"], ("de", "en"), ["--pretokenised: IWSLT"]),
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
        (GOOD[: len(GOOD) // 2], None, ["thing-1/inner.zip in", "truncated or damaged", "; delete it and fetch"]),
        (packed(b"one\tun\tby 1\ntwo\n"), None, ["table.txt, line 2: fewer columns"]),
        (packed(b"one\tun\tby 1\ntwo\tdeux\n"), None, ["table.txt, line 2: fewer columns"]),
        (packed(b"one\tun\tby 1\n\xff\tdeux\tby 2\n"), None, ["table.txt in", "line 2: not valid UTF-8"]),
        (GOOD, '["thing-1.tar.gz", "elsewhere"]', ["holds no file elsewhere"]),
        (GOOD, '["thing-1.tar.gz", "thing-1/inner.zip", "elsewhere"]', ["inner.zip: holds no file elsewhere"]),
    ],
)
def test_bad_archives(capsys, tmp_path, archive, table, parts):
    options = registry(tmp_path, archive, *([table] if table else []))
    assert_refused(run(capsys, tmp_path, *options), tmp_path, *parts)


def test_what_a_mirror_has_compressed_is_kept_in_the_given_cache(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert prepare.parser().get_default("cache") == tmp_path / "other/fairseq-transformer-variants"
    options = registry(tmp_path, packed(b"one\n"))
    archive = tmp_path / "mirror/thing-1.tar.gz"
    archive.with_name("thing-1.tar.gz.gz").write_bytes(gzip.compress(archive.read_bytes()))
    archive.unlink()
    assert_refused(run(capsys, tmp_path, *options), tmp_path, "table.txt, line 1: fewer columns")
    assert [*tmp_path.glob("cache/*/thing-1.tar.gz")] and not (tmp_path / "other").exists()


def prepared(capsys, tmp_path, pairs, *arguments):
    """Status, output and warnings of a whole preparation."""
    for name, side in zip(("a.fr", "b.en"), zip(*pairs)):
        write(tmp_path / name, side)
    options = ["--source-lang", "fr", "--target-lang", "en", "--bpe-operations", "9", "--workers", "1", *arguments]
    files = ["--train", tmp_path / "a.fr", tmp_path / "b.en", "--output", tmp_path / "out"]
    status = prepare.main([str(word) for word in files + options])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def test_each_rule_says_what_it_dropped(capsys, tmp_path):
    pairs = [*sentences(1200), ("", "x"), ("a b c d e f", "one"), ("a b c d e f", "two")] + 2 * [("a b", "a b")]
    pairs.append(("yes", "(a) (b) [c]"))  # 1 and 3 words, but 1 and 9 tokens
    pairs += [("c – d", "x y"), ("c - d", "x y")]  # two texts, but the same tokens
    status, shown, warnings = prepared(capsys, tmp_path, pairs, "--held-out", "60")
    assert status == 0 and warnings == ""
    (line,) = [line for line in shown.splitlines() if line.startswith("1,208 pairs: ")]
    for part in ("60 valid", "60 test", "1 empty", "3 length ratio", "2 duplicate"):
        assert re.search(rf"\b{part}\b", line)
    counts = [int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", line)]
    assert counts[0] == sum(counts[1:])  # no pair is lost without a word
    status, again, warnings = prepared(capsys, tmp_path, pairs, "--held-out", "60")
    assert "raw: nothing to do" in again and line in again and warnings == ""
    status, fewer, warnings = prepared(capsys, tmp_path, pairs, "--held-out", "60", "--max-pairs", "200")
    assert "raw: its options have changed" in fewer and (tmp_path / "out/raw/train.fr").read_text().count("\n") == 200


def test_tokens_stay_as_they_are(capsys, tmp_path):
    """Thai vowel signs, which sacremoses cuts off; and nmt-translate gives back what it was given."""
    pairs = [(f'ผม กิน แอปเปิ้ล {n} ลูก ("ที่")', f"I eat {n} apples , don't I ?") for n in range(200)]
    options = ["--pretokenised", "--source-lang", "th_Thai", "--bpe-operations", "60", "--held-out", "20"]
    assert prepared(capsys, tmp_path, pairs, *options)[0] == 0
    out = tmp_path / "out"
    for language in ("th_Thai", "en"):
        for part in ("train", "valid", "test"):
            name = f"{part}.{language}"
            assert (out / "raw" / name).read_text(encoding="utf-8") == (out / "tok" / name).read_text(encoding="utf-8")
    text = PreparedText(preparation_of(out / "data-bin"), "th_Thai", "en")
    for sentence in (pairs[7][0], "แอปเปิ้ล"):
        assert text.decode(text.encode(sentence)) == sentence
    test = ["--test", *(out / f"raw/test.{language}" for language in ("th_Thai", "en"))]  # --held-out is for valid
    assert prepared(capsys, tmp_path, pairs, *options, *test, "--like", out, "--output", tmp_path / "more")[0] == 0


def test_subwords_that_the_model_knows(capsys, tmp_path):
    """abc is a merge that the training text always continues, to abcd or abce, so the model would not know it."""
    write(tmp_path / "train.fr", [f"abcd abce abcd abce {number}" for number in range(300)])
    write(tmp_path / "train.en", [f"dcba dcbe dcba dcbe {number}" for number in range(300)])
    options = ["--train", tmp_path / "train.fr", tmp_path / "train.en", "--bpe-operations", "8"]
    for part in ("valid", "test"):
        for language in ("fr", "en"):
            write(tmp_path / f"{part}.{language}", [f"abcx {language} {part} {number}" for number in range(60)])
        options += [f"--{part}", tmp_path / f"{part}.fr", tmp_path / f"{part}.en"]
    assert run(capsys, tmp_path, *options)[0] == 0
    out = tmp_path / "out"
    assert segment_lines(["abcd abcx"], out / "bpe/codes") == ["abcd abc@@ x"]
    line = (out / "bpe/test.fr").read_text().partition("\n")[0]
    assert line.startswith("a@@ b@@ c@@ x ")
    assert {"abcd", "dcba"} <= {*(out / "bpe/vocabulary").read_text().split()}  # of both languages
    text = PreparedText(preparation_of(out / "data-bin"), "fr", "en")
    assert text.encode((out / "raw/test.fr").read_text().partition("\n")[0]) == line  # nmt-translate's


def test_words_that_fairseq_and_subword_nmt_use_themselves(capsys, tmp_path):
    """Moses escapes them, but tokens of the reader's choice stay as they are; BPE may split off the end of one."""
    pairs = [(f"a{number} </s> b", f"c{number} d") for number in range(200)]
    status, _, said = prepared(capsys, tmp_path, pairs, "--held-out", "20", "--pretokenised")
    assert status == 1 and "the text in fr has the word </s>, and no word may end in" in said
    others = (("<s>x</s>", [], "<s>x</s>"), ("x@@", [], "x@@"), ("x</w>y", [], "x</w>y"))
    for text, option, word in (("<PAD>", ["--lowercase"], "<pad>"), *others):
        texts = [(f"a{number} {text} b", f"c{number} d") for number in range(200)]
        status, _, said = prepared(capsys, tmp_path, texts, "--held-out", "20", "--pretokenised", *option)
        assert status == 1 and f"the text in fr has the word {word}, and no word may end in" in said
    assert prepared(capsys, tmp_path, pairs, "--held-out", "20")[0] == 0


def test_a_language_without_rules_of_moses(capsys, tmp_path):
    """German is de to Moses; tokens need no rules."""
    german = ["--held-out", "60", "--source-lang", "deu"]
    status, _, warnings = prepared(capsys, tmp_path, sentences(400), *german)
    assert status == 0 and re.fullmatch(r".* for deu, only for .*\bde, .*\bko, .*README.md .*\n", warnings)
    bavarian = ["--source-lang", "bar"]  # of the same texts, of which other files are to be made
    assert prepared(capsys, tmp_path, sentences(400), *german, *bavarian, "--pretokenised")[2] == ""


def test_texts_that_would_be_replaced(capsys, tmp_path, monkeypatch):
    """Those of an earlier preparation in the same folder."""
    pairs = [(f"a{number} b", f"c{number} d") for number in range(200)]
    assert prepared(capsys, tmp_path, pairs, "--held-out", "20")[0] == 0
    texts = ["--train", tmp_path / "b.en", tmp_path / "a.fr", "--held-out", "20", "--bpe-operations", "9"]
    assert run(capsys, tmp_path, *texts, langs=("en", "fr"))[0] == 0
    assert (tmp_path / "out/data-bin/train.en-fr.en.bin").exists()  # by its name fairseq-train knows the direction
    assert preparation_of(tmp_path / "out/data-bin").languages == ("en", "fr")
    raw = tmp_path / "out/raw"
    before = (raw / "train.fr").read_text()
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, Path()):  # of --output, also as seen from the current folder
        status, said = run(capsys, folder, "--train", raw / "train.fr", raw / "train.en")
        assert status == 1 and "raw/train.fr is a file of --output" in said and (raw / "train.fr").read_text() == before


def test_an_attribution_of_the_readers_own_stays(capsys, tmp_path):
    """It must accompany texts that were copied from an earlier preparation; one that this command wrote goes."""
    own, pairs = write(tmp_path / "out/ATTRIBUTION", ["Somebody's sentences"]), [pair for _, pair in UNIQUE]
    assert prepared(capsys, tmp_path, pairs)[0] == 0 and own.exists()
    assert run(capsys, tmp_path, *registry(tmp_path, packed(TABLE.encode())), "--bpe-operations", "9")[0] == 0
    assert prepared(capsys, tmp_path, pairs)[0] == 0 and not own.exists()


def test_text_without_spaces_is_not_lost_without_a_word(capsys, tmp_path):
    """A sentence of Chinese is one word; the remedies are those that help."""
    joined = [(first if number % 9 == 0 else first.replace(" ", ""), second) for number, (first, second) in UNIQUE]
    status, shown, warnings = prepared(capsys, tmp_path, joined)
    assert status == 0 and re.search(r"\b355 length ratio", shown)
    dropped, few = warnings.splitlines()
    assert re.search(r"warning: 355 of 400 pairs \(89%\).*'length ratio'.*spaces between the words.*README", dropped)
    assert "--max-ratio" in dropped and re.search("valid has 2 .*test has 2 .*--valid and --test", few)
    assert "length ratio" not in prepared(capsys, tmp_path, joined, "--max-ratio", "9")[1]
    spaced = [pair for _, pair in UNIQUE]
    status, shown, warnings = prepared(capsys, tmp_path, spaced, "--held-out", "60")
    assert status == 0 and "dropped: none" in shown and warnings == ""
    status, shown, warnings = prepared(capsys, tmp_path, [pair for pair in joined if " " not in pair[0]])
    assert status == 1 and "'length ratio'" in warnings and warnings.count("\n") == 1


def test_many_pairs_that_either_stage_drops(capsys):
    few, many = {"in": 100, "dropped": {"empty": 24}, "train": 76}, {"in": 100, "dropped": {"empty": 25}, "train": 75}
    for stages, warned in (((few, many), 1), ((many, few), 1), ((few, few), 0)):
        pipeline.report(stages[0] | {"valid": 50, "test": 50}, stages[1])
        said = capsys.readouterr().err  # and 50 pairs of each other part are enough
        assert said.count("warning: 25 of 100 pairs (25%) were dropped; for 'empty'") == said.count("\n") == warned


def test_no_disk_space(capsys, tmp_path, monkeypatch):
    options = registry(tmp_path, GOOD)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: FULL_DISK)
        assert_refused(run(capsys, tmp_path, *options), tmp_path, "bytes of disk space, 9 are free")
        few = run(capsys, tmp_path, *options, "--max-pairs", "9")
        assert_refused(few, tmp_path, f"needs {6 * len(GOOD):,} bytes of disk space")

    def fill_up(source, folder, *rest):
        write(folder / "train.en", itertools.repeat("half a file", 9))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pipeline, "extract", fill_up)
    assert_refused(run(capsys, tmp_path, *options), tmp_path, "no disk space left")


LIMITS = [("max 100000", 8), ("5000 10000", 1), ("10000 10000", 1), ("35000 10000", 3), ("90000 10000", 8), ("", 8)]


@pytest.mark.parametrize("limit, expected", LIMITS)
def test_workers_in_a_container(tmp_path, monkeypatch, limit, expected):
    """On a host of many cores, a worker for each would fill the memory that the container has."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8))
    assert prepare.cores(write(tmp_path / "cpu.max", [limit])) == expected
    assert prepare.cores(tmp_path / "missing") == 8
    assert prepare.parser().get_default("workers") == prepare.cores()


def test_list(capsys, tmp_path):
    assert prepare.main(["--list"]) == 0
    listing = capsys.readouterr().out
    expected = "tatoeba:|en-fr, en-es (either direction)|CC BY 2.0 FR|tatoeba.org|multi30k:|de-en"
    assert not [words for words in expected.split("|") if words not in listing]
    assert prepare.main(["--list", *registry(tmp_path, GOOD)]) == 0
    assert capsys.readouterr().out.startswith("thing: A thing\n")


def test_nobody_reads_the_output():
    command = [sys.executable, prepare.__file__, "--list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == ("", 141)


def test_names_that_the_output_cannot_show(tmp_path):
    """Such as a path that is not UTF-8, which the last line names when all is done."""
    options = [*registry(tmp_path, GOOD)]
    file = tmp_path / "registry.toml"
    file.write_text(file.read_text().replace("A thing", "κ – thing"), encoding="utf-8")
    env = {**os.environ, "PYTHONIOENCODING": "latin-1:strict"}
    done = subprocess.run([sys.executable, prepare.__file__, "--list", *options], env=env, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"") and b"\\u03ba \\u2013 thing" in done.stdout


def test_a_worker_that_is_killed_is_one_line(capsys, monkeypatch):
    """As Linux does where memory runs out."""
    monkeypatch.setattr(prepare, "prepare", mock.Mock(side_effect=BrokenProcessPool))
    assert prepare.main([]) == 1
    assert re.fullmatch("prepare.py: .*use fewer --workers\n", capsys.readouterr().err)


def test_ctrl_c_has_a_status_that_ends_a_shells_loop(capsys, monkeypatch):
    monkeypatch.setattr(prepare, "prepare", mock.Mock(side_effect=KeyboardInterrupt))
    assert prepare.main([]) == 130
    assert capsys.readouterr().err == "prepare.py: interrupted; run the command again to continue\n"
