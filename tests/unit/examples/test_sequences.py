"""The generated tasks, SCAN's splits, and the exact match of outputs as long as in training and longer."""

import functools
import gzip

import pytest

from support import PROJECT, said

sequences = functools.partial(said, "python", PROJECT / "examples/sequences.py")
LINE = b"IN: a OUT: b\n"


def pairs(raw, part):
    sides = [(raw / f"{part}.{side}").read_text(encoding="utf-8").splitlines() for side in ("input", "output")]
    return [(one.split(), other.split()) for one, other in zip(*sides, strict=True)]


def outputs(task, given):
    if task == "intersperse":
        bar = given.index("|")
        return [letter for both in zip(given[:bar], given[bar + 1 :], strict=True) for letter in both]
    return given[::-1] if task == "reverse" else given * 2


@pytest.mark.parametrize("task", ["reverse", "duplicate", "intersperse"])
def test_generated(task, tmp_path):
    sequences("prepare", task, tmp_path)
    parts = {part: pairs(tmp_path, part) for part in ("train", "valid", "test")}
    assert [len(found) for found in parts.values()] == [20_000, 1_000, 2_000]
    everything = [pair for found in parts.values() for pair in found]
    assert all(right == outputs(task, given) for given, right in everything)
    assert len({tuple(given) for given, _ in everything}) == 23_000
    lengths = [len(given) - (task == "intersperse") for given, _ in parts["test"]]
    assert sum(length <= 16 for length in lengths) == 1_000 and max(lengths) == 24
    assert max(len(given) for given, _ in parts["train"]) == 16 + (task == "intersperse")
    assert min(len(given) for given, _ in parts["train"]) == 2 + (task == "intersperse")
    assert lengths.count(1) == {"reverse": 22, "duplicate": 24, "intersperse": 0}[task]  # as sequences.md says
    before = (tmp_path / "train.input").read_bytes()
    sequences("prepare", task, tmp_path)
    assert (tmp_path / "train.input").read_bytes() == before


@pytest.mark.parametrize("packed", [True, False])
def test_scan(packed, tmp_path):
    lines = {part: [f"IN: {part} {n} OUT: I_{part.upper()} {n}\n" for n in range(1_200)] for part in ("train", "test")}
    for part, text in lines.items():
        if packed:
            with gzip.open(tmp_path / f"length.{part}.gz", "wt") as file:
                file.writelines(text)
        else:  # as in their repository
            (tmp_path / "length_split").mkdir(exist_ok=True)
            (tmp_path / f"length_split/tasks_{part}_length.txt").write_text("".join(text))
    sequences("prepare", "scan_length", tmp_path, tmp_path / "raw")
    parts = {part: pairs(tmp_path / "raw", part) for part in ("train", "valid", "test")}
    assert [len(found) for found in parts.values()] == [200, 1_000, 1_200]
    assert [given[1] for given, _ in parts["valid"][:4]] == ["269", "578", "169", "1167"]  # the same on every machine
    assert parts["test"][7] == (["test", "7"], ["I_TEST", "7"])
    assert {given[1] for given, _ in parts["train"] + parts["valid"]} == {str(n) for n in range(1_200)}


def test_scores(tmp_path):
    texts = {"train.output": "a b,a", "test.output": "a b,b,a b c,c c c,c b a", "ours": "a b ,a,a b c,,c b a"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text.replace(",", "\n") + "\n")
    assert "| 50.0 | 66.7 |" in sequences("score", tmp_path, tmp_path / "ours")
    (tmp_path / "train.output").write_text("a b c\n")
    assert "| 60.0 | none |" in sequences("score", tmp_path, tmp_path / "ours")


@pytest.mark.parametrize(
    "words, said",
    [
        (["prepare", "scan_jump", ".", "."], "has none of addprim_jump.train, add_prim_split/tasks_train_addprim_jump"),
        (["prepare", "sort", "."], "sequences.py prepare TASK"),
        (["prepare", "reverse", "a", "b"], "sequences.py prepare TASK"),
    ],
)
def test_refusals(words, said):
    assert said in sequences(*words, ok=False)


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("length.train.gz", gzip.compress(LINE * 2000)[:-9], "train.gz cannot be read: Compressed file ended"),
        ("length.train", LINE * 2000 + b"IN: a OUT: I_TU", "cut off in its last line"),
        ("length.train", LINE + b"IN: a b\n" + LINE * 2000, "length.train, line 2 is not IN: … OUT: …: fetch"),
        ("length.train", b"", "length.train cannot be read: it is empty"),
        ("length.train", LINE * 1000, "1000 training pairs: fetch SCAN again"),
    ],
    ids=["packed", "not packed", "no output", "empty", "a beginning"],
)
def test_a_file_that_is_cut_off_is_one_line(tmp_path, name, content, words):
    (tmp_path / "length.test").write_text("IN: a OUT: b\n")
    (tmp_path / name).write_bytes(content)
    said = sequences("prepare", "scan_length", tmp_path, tmp_path / "raw", ok=False)
    assert words in said and said.count("\n") == 1 and not (tmp_path / "raw").exists()
