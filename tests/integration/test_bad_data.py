"""Data that cannot be trained with: fairseq-train ends in one line that says how to fix it.

Bad corpora are in unit/data_prep/.
"""

import contextlib
import itertools
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.data import indexed_dataset
from integration.refusals import PLAIN, assert_refused, check_input

from user_dir.errors import InputError
from user_dir.task import CheckedTranslationConfig, CheckedTranslationTask
from user_dir.training import input as training_input
from user_dir.training.data import batch_fault


def test_sentences_that_just_fit(copies):
    """The shortest has 2 subwords, the longest 9."""
    check_input(copies, "--disable-validation --max-tokens 2 --max-source-positions 2")
    check_input(copies, "--max-tokens 9 --max-source-positions 9")
    words = "--max-source-positions 9 --skip-invalid-size-inputs-valid-test"
    said = "--max-tokens-valid 8 .*longest sentence of .*src.bin has 9 subwords"
    assert_refused(said, copies, words, max_tokens_valid=8)


def test_held_out_sentences_that_are_cut_or_not_read(data):
    """No sentence is too long for the model if --truncate-source cuts it, or if no --valid-subset names its set."""
    source = "--max-source-positions 7"
    truncated = f"{source} --truncate-source"
    check_input(data, truncated)
    check_input(data, f"{truncated} --max-tokens 4", max_tokens_valid=500)
    check_input(data, f"{truncated} --train-subset valid --disable-validation", max_tokens_valid=3)
    assert_refused(f"{source}: the longest sentence of .*valid", data, f"{source} --valid-pairs 10000")
    words = f"{truncated} --max-target-positions 7"
    assert_refused("--max-target-positions 7: the longest sentence of .*valid", data, words)
    check_input(data, f"{source} --valid-pairs 1")
    for words in ("--valid-subset train", "--combine-valid-subsets"):  # of which no sample is taken, or another one
        assert_refused(f"{source}: the longest sentence of ", data, f"{source} --valid-pairs 1 {words}")
    for path in data.glob("valid.*"):
        path.rename(path.with_name(path.name.replace("valid", "valid1")))
    for language in ("src", "tgt"):
        short = data / f"valid.src-tgt.{language}"
        builder = indexed_dataset.make_builder(f"{short}.bin", "mmap", 10)
        builder.add_item(torch.tensor([4, 2]))
        builder.finalize(f"{short}.idx")
    check_input(data, f"{source} --ignore-unused-valid-subsets")


@pytest.mark.parametrize(
    "side, cut, positions, fault",
    [
        ("source", True, 4, None),
        ("source", True, 6, "--max-tokens"),
        ("source", False, 9, "--max-tokens"),
        ("target", True, 4, "--max-tokens"),
    ],
)
def test_sources_are_cut_before_they_are_too_long_for_a_batch(side, cut, positions, fault):
    """One of nine subwords in batches of five."""
    data = SimpleNamespace(side=side, text="text", index=lambda: SimpleNamespace(sizes=np.array([9])))
    task_cfg = SimpleNamespace(truncate_source=cut, max_source_positions=positions, max_target_positions=positions)
    found = batch_fault(data, SimpleNamespace(max_tokens=5), task_cfg)
    assert found is None if fault is None else found.startswith(fault)


def test_one_table_for_two_dictionaries(refused, data):
    with open(data / "dict.tgt.txt", "a") as dictionary:
        dictionary.write("more 1\n")
    words = "--share-all-embeddings: the languages have dictionaries of their own: omit it"
    refused(words, PLAIN, "--share-all-embeddings", data=data)


def written(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def cut(name, size):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def overflown(folder):
    """The last position, as fairseq-preprocess writes it where it adds up numbers of 32 bits."""
    index = folder / "train.src-tgt.src.idx"
    index.write_bytes(index.read_bytes()[:-8] + (-1894967196).to_bytes(8, "little", signed=True))


def removed(pattern):
    return lambda folder: [path.unlink() for path in folder.glob(pattern)]


FEW = b"w1 5\nw2 5\n"

AGAIN = "prepare the data again"


def both(*spoils):
    return lambda folder: [spoil(folder) for spoil in spoils]


DATA = [
    (cut("train.src-tgt.src.bin", 100), f"train.src-tgt.src.bin has 50 of [0-9,]+ subwords: {AGAIN}"),
    (written("valid.src-tgt.src.bin", b"\4\0" * 10**5), "valid.src-tgt.src.bin has 100,000 of [0-9,]+ subwords"),
    (written("valid.src-tgt.src.bin", b""), f"valid.src-tgt.src.bin has no sentences: {AGAIN}"),
    (removed("train.src-tgt.tgt.bin"), f"train.src-tgt.tgt.bin is missing: {AGAIN}"),
    (cut("valid.src-tgt.tgt.idx", 100), f"valid.src-tgt.tgt.idx .*is truncated .*: {AGAIN}"),
    (cut("train.src-tgt.src.idx", 20), f"train.src-tgt.src.idx .*is truncated .*: {AGAIN}"),
    (cut("train.src-tgt.src.idx", 3), f"train.src-tgt.src.idx is truncated: {AGAIN}"),
    (overflown, f"train.src-tgt.src.idx has wrong positions, .* --workers: {AGAIN}"),
    (written("dict.src.txt", FEW), f"dict.src.txt has 6 words .*train.src-tgt.src.bin .* 1.: {AGAIN}"),
    (written("dict.tgt.txt", FEW), f"dict.tgt.txt has 6 words .*tgt.bin .* 1.: {AGAIN}"),
    (written("dict.src.txt", "ä 5\n".encode("latin-1")), f"dict.src.txt is not a dictionary .*: {AGAIN}"),
    (written("dict.src.txt", b"w1\n"), f"dict.src.txt is not a dictionary .*: {AGAIN}"),
    (removed("dict.tgt.txt"), rf"no dict.tgt.txt: {AGAIN}.* --target-lang"),
    (removed("valid*"), f"spoilt has no valid.src-tgt.src.idx; .* no valid.src-tgt.tgt.idx: {AGAIN}"),
    (removed("valid.src-tgt.tgt.*"), f"^[^;]*spoilt has no valid.src-tgt.tgt.idx: {AGAIN}"),
    (removed("train*"), f"spoilt has no train.src-tgt.src.idx; .* no train.src-tgt.tgt.idx: {AGAIN}"),
    (both(removed("valid*"), removed("train.src-tgt.tgt.bin")), "no valid.src-tgt.src.idx; .*tgt.bin is missing"),
    (removed("*"), "spoilt has no data .*: name the folder data-bin"),
    (shutil.rmtree, "no folder .*spoilt: name the folder data-bin"),
]


@pytest.mark.parametrize("spoil, words", DATA, ids=lambda value: value[:30] if isinstance(value, str) else "")
def test_data(refused, copies, tmp_path, spoil, words):
    data = tmp_path / "spoilt"
    spoil(shutil.copytree(copies, data))
    assert_refused(words, data)
    if spoil in (DATA[0][0], DATA[-1][0]):
        refused(words, PLAIN, data=data)


def test_a_dictionary_that_lacks_the_last_word(data):
    """The data have the words 4 to 13: those before are fairseq's own."""
    words = [f"w{number} 5\n" for number in range(10)]
    (data / "dict.src.txt").write_text("".join(words))
    check_input(data)
    (data / "dict.src.txt").write_text("".join(words[:9]))
    assert_refused("dict.src.txt has 13 words .*src.bin has word number 13: ", data)


def test_held_out_sentences_with_a_dot_in_their_name(data):
    for path in [*data.glob("valid.*")]:
        path.rename(path.with_name(path.name.replace("valid", "valid.2017")))
    words = "--valid-subset valid.2017"
    check_input(data, words)
    said = "longest sentence of .*valid.2017.src-tgt.src.bin has 9 subwords"
    assert_refused(said, data, f"{words} --max-source-positions 7")
    (data / "dict.tgt.txt").write_bytes(FEW)
    assert_refused("dict.tgt.txt has 6 words and [^;]*valid.2017.src-tgt.tgt.bin has word", data, words)


def test_data_in_two_folders(copies, data, tmp_path):
    """fairseq reads held-out sentences of the first one only."""
    cut("valid.src-tgt.src.bin", 10)(data)
    check_input(f"{copies}:{data}")
    assert_refused("nowhere has no train.src-tgt.src.idx", f"{copies}:{tmp_path}/nowhere")


def test_held_out_sentences_in_two_files(data):
    """fairseq reads the second one only to combine them."""
    for path in [*data.glob("valid.src-tgt.*")]:
        shutil.copy(path, path.with_name(path.name.replace("valid", "valid1")))
    combined, both = "--combine-valid-subsets", "--valid-subset valid1,valid"
    for words in (combined, both):
        remedy = r"longest sentence of .*valid1?\.src.* has 9 subwords: add --skip-invalid"
        assert_refused(remedy, data, f"--max-source-positions 7 {words}")
    cut("valid1.src-tgt.src.bin", 10)(data)
    check_input(data, "--ignore-unused-valid-subsets")
    for words in (combined, both):
        assert_refused("valid1.*: prepare the data again", data, words)


@pytest.mark.parametrize(
    "counts, word, numbers, words",
    [
        ("1 32\n", "w1", 32, None),
        ("1 16\n", "w1", 16, "vectors of 16 numbers: give --encoder-embed-dim 16"),
        ("", "w1", 32, "vectors: fairseq skips the first line: begin it with the line WORDS WIDTH"),
        (f"2 32\nword{' 0.5' * 32}\n", "w1", 32, None),
        ("1 32\n", "word", 32, "vectors has no word of the dictionary: give vectors of its subwords"),
    ],
)
def test_vectors(copies, tmp_path, counts, word, numbers, words):
    (tmp_path / "vectors").write_text(f"{counts}{word}{' 0.5' * numbers}\n")
    with pytest.raises(InputError, match=words) if words else contextlib.nullcontext():
        check_input(copies, f"--encoder-embed-path {tmp_path}/vectors")


def test_vectors_of_the_target(data, tmp_path):
    """The target has its own dictionary; fairseq-hydra-train may have no width to compare."""
    with open(data / "dict.tgt.txt", "a") as dictionary:
        dictionary.write("more 1\n")
    (tmp_path / "vectors").write_text(f"1 32\nmore{' 0.5' * 32}\n")
    for width in (32, None):
        check_input(data, f"--decoder-embed-path {tmp_path}/vectors", decoder_embed_dim=width)
    said = "--encoder-embed-path .*vectors has no word of the dictionary"
    assert_refused(said, data, f"--encoder-embed-path {tmp_path}/vectors")


def test_a_folder_with_two_pairs_of_languages(data):
    """fairseq would take the one that the file system lists first."""
    check_input(data, "-s src")
    for words in ("-s tgt", "-t src"):  # fairseq would train src to tgt
        assert_refused("has data of src-tgt: give both --source-lang and --target-lang", data, words)
    for path in data.glob("train.src-tgt.*"):
        shutil.copy(path, path.with_name(path.name.replace("src-tgt", "tgt-src")))
    shutil.copy(data / "test.src-tgt.src.idx", data / "test.2017.src-tgt.src.idx")  # not of two more
    check_input(data, "-s src -t tgt")
    assert_refused("data has data of src-tgt and tgt-src: give the languages", data)


def test_files_that_fairseq_does_not_read(tmp_path):
    names = [f"{part}.src-tgt.src.idx" for part in ("train", "train12", "train_old", "train.old")]
    for name in names:
        (tmp_path / name).touch()
    for pair in (("src", "tgt"), ("tgt", "src")):  # data serve both directions
        assert [path.name for path in training_input.parts_of(tmp_path, "train", pair, "src")] == names[:2]


def test_a_training_set_in_two_files(data, caplog):
    """fairseq's own default of --upsample-primary fails."""
    given = {"data": str(data), "train_subset": "train", "dataset_impl": "mmap"}
    task = CheckedTranslationTask.setup_task(CheckedTranslationConfig(**given))
    task.load_dataset("train", combine=True)
    pairs = len(task.dataset("train"))
    for path in [*data.glob("train.src-tgt.*")]:
        shutil.copy(path, path.with_name(path.name.replace("train", "train1")))
    task.load_dataset("train", combine=True)
    assert len(task.dataset("train")) == 2 * pairs
    check_input(data)
    assert "is not read" not in caplog.text
    for path in [*data.glob("train1.*")]:
        shutil.copy(path, path.with_name(path.name.replace("train1", "train3")))
        path.rename(path.with_name(path.name.replace("train1", "train2")))
    (data / "train2.src-tgt.src.bin").write_bytes(b"")  # nor is it checked
    check_input(data)
    for name in ("train2", "train3"):
        assert f"data: {name} is not read, because fairseq counts train, train1," in caplog.text
    caplog.clear()
    other = shutil.copytree(data, data.with_name("other"))  # with train1, so that train2 and train3 are read there
    for path in [*other.glob("train.src-tgt.*")]:
        shutil.copy(path, path.with_name(path.name.replace("train", "train1")))
    assert_refused(r"^\S*other/train2.src-tgt.src.bin has no sentences: prepare", f"{data}:{other}")
    assert "data: train2 is not read" in caplog.text and "other: " not in caplog.text


@pytest.mark.parametrize("language, other", [("src", "tgt"), ("tgt", "src")])
@pytest.mark.parametrize("part, words", [("train", ""), ("valid", "--combine-valid-subsets")])
def test_a_further_set_in_one_language(data, part, words, language, other):
    """As the source fairseq fails at it, as the target it leaves the set out, both without a word."""
    for ending in ("bin", "idx"):
        shutil.copy(data / f"{part}.src-tgt.{language}.{ending}", data / f"{part}1.src-tgt.{language}.{ending}")
    for direction in ("-s src -t tgt", "-s tgt -t src"):
        assert_refused(rf"^[^;]*data has no {part}1\.src-tgt\.{other}\.idx: {AGAIN}", data, f"{direction} {words}")


@pytest.mark.parametrize("impl, words", [("cached", 10), ("mmap", 70_000)])
def test_data_of_another_form(data, impl, words):
    """Those of --dataset-impl cached or lazy are left to fairseq; with many words numbers have 32 bits."""
    text = data / "train.src-tgt.src"
    builder = indexed_dataset.make_builder(f"{text}.bin", impl, words)
    builder.add_item(torch.tensor([4, 2]))
    builder.finalize(f"{text}.idx")
    check_input(data)


def test_raw_data_have_no_index(copies, tmp_path):
    for part, language in itertools.product(("train", "valid"), ("src", "tgt")):
        (tmp_path / f"{part}.src-tgt.{language}").write_text("w1\n")
        shutil.copy(copies / f"dict.{language}.txt", tmp_path)
    check_input(tmp_path)
    for part in tmp_path.glob("valid*"):
        part.unlink()
    check_input(tmp_path, "--disable-validation")
    assert_refused("has no valid.src-tgt.src.idx", tmp_path)
