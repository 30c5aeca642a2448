"""prepare.py --like: other text with the tokens, subwords and dictionaries of an earlier preparation."""

import json
import shutil

import prepare
import pytest
from fairseq.data import Dictionary
from unit.data_prep.support import write

from user_dir.preparation import PreparedText, preparation_of
from user_dir.serving.exported_translator import write_facts

WORDS = ["Le chat dort", "Un chien mange", "La mer monte"], ["The cat sleeps", "A dog eats", "The sea rises"]
OTHER = (
    ["Le chien „dort“", "Zoé mangera la chatte 漢", "漢 漢字 dort"],
    ["A dog sleeps", "Zoé eats 漢", "漢 漢字 sleeps"],
)


def run(folder, name, sides, *options, langs=("fr", "en")):
    """Prepares 120 numbered pairs in the folder `name`; returns the status."""
    files = []
    for code, texts in zip(("fr", "en"), sides):
        lines = [f"{text} {number}." for number in range(40) for text in texts]
        files.append(write(folder / f"{name}.{code}", lines))
    options = ["--train", *files, "--held-out", "10", "--workers", "1", "--output", folder / name, *options]
    for option, code in zip(("--source-lang", "--target-lang"), langs):
        options += [option, code]
    return prepare.main([str(word) for word in options])


@pytest.fixture(scope="module", params=[(), ("--separate-bpe",)], ids=["joint", "separate"])
def earlier(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("like")
    assert run(folder, "old", WORDS, "--lowercase", "--bpe-operations", "40", *request.param) == 0
    return folder


def like(folder, name, *options, capsys):
    """Prepares OTHER like the earlier text; what it says."""
    status = run(folder, name, OTHER, "--like", folder / "old", *options, langs=())
    shown = capsys.readouterr()
    assert status == 0, shown.err
    return shown.out


def dictionaries(folder):
    return [Dictionary.load(str(folder / f"data-bin/dict.{code}.txt")) for code in ("fr", "en")]


def unknown(folder, part="train"):
    """How many of its subwords the dictionaries lack."""
    texts = [(folder / f"bpe/{part}.{code}").read_text(encoding="utf-8").split() for code in ("fr", "en")]
    return sum(word not in known for text, known in zip(texts, dictionaries(folder)) for word in text)


def test_held_out_pairs_that_earlier_models_know(earlier, capsys):
    english = OTHER[0], WORDS[1]  # the only side that they share
    assert run(earlier, "more", english, "--like", earlier / "old", "--held-out", "15", langs=()) == 0
    told = capsys.readouterr().err  # the first twenty pairs were held out there, too
    assert "10 of 15 valid pairs share a sentence with the training text" in told and "test pairs share" not in told
    assert "; give others with --valid and --test" in told
    assert run(earlier, "others", OTHER, "--like", earlier / "old", langs=()) == 0
    assert "share a sentence" not in capsys.readouterr().err


def test_subwords_are_those_of_the_earlier_text(earlier, capsys):
    said = like(earlier, "other", capsys=capsys)
    old, new = earlier / "old", earlier / "other"
    for file in (*old.glob("data-bin/dict.*"), *old.glob("bpe/codes*")):
        assert (new / file.relative_to(old)).read_bytes() == file.read_bytes()
    tokens = (new / "tok/train.fr").read_text(encoding="utf-8")
    assert "zoé" in tokens and "„" not in tokens  # lower-cased and normalised like the earlier text
    lost = unknown(new)
    total = sum(len((new / f"bpe/train.{code}").read_text(encoding="utf-8").split()) for code in ("fr", "en"))
    assert 0 < lost and f"<unk>: {lost:,} of {total:,} in train, " in said and "--new-characters" in said
    pieces = {*" ".join((new / f"bpe/train.{code}").read_text(encoding="utf-8") for code in ("fr", "en")).split()}
    known = {*dictionaries(new)[0].symbols, *dictionaries(new)[1].symbols}
    assert {len(piece.removesuffix("@@")) for piece in pieces - known} == {1}  # only characters are unknown


def test_new_characters_follow_the_old_entries(earlier, capsys):
    said = like(earlier, "extended", "--new-characters", capsys=capsys)
    assert unknown(earlier / "extended") == 0 and "<unk>: 0 of " in said and "--new-characters" not in said
    for old, new in zip(dictionaries(earlier / "old"), dictionaries(earlier / "extended")):
        assert new.symbols[: len(old)] == old.symbols and len(new) > len(old) and len(new) % 8 == 0
        assert "漢" in new and "漢" not in old and new.count[new.index("漢")] > 40  # how often the text has it
        assert new.count[len(old) :] == sorted(new.count[len(old) :], reverse=True)  # as fairseq sorts its own
    counts = json.loads((earlier / "extended/manifest.json").read_text())["stages"]["data-bin"]["counts"]
    assert [*counts["dictionaries"].values()] == [*map(len, dictionaries(earlier / "extended"))]
    text = PreparedText(preparation_of(earlier / "extended/data-bin"), "fr", "en")
    for part in ("train", "test"):
        raw, pieces = (
            (earlier / "extended" / name).read_text(encoding="utf-8").splitlines()
            for name in (f"raw/{part}.fr", f"bpe/{part}.fr")
        )
        assert [text.encode(line) for line in raw] == pieces  # nmt-translate's subwords
    (earlier / "exported").mkdir()
    write_facts(earlier / "exported", earlier / "extended/data-bin", {"source_lang": "fr"})  # for CTranslate2
    exported = PreparedText(preparation_of(earlier / "exported/translator.json"), "fr", "en")
    assert [exported.encode(line) for line in raw] == pieces
    again = run(earlier, "third", OTHER, "--like", earlier / "extended", langs=())
    assert again == 0 and unknown(earlier / "third") == 0


@pytest.mark.parametrize(
    ("options", "langs", "parts"),
    [
        (["--bpe-operations", "41"], (), ["--bpe-operations 41", "with 40", "omit"]),
        (["--pretokenised"], (), ["--pretokenised", "without it", "omit"]),
        ([], ("en", "fr"), ["--source-lang en", "with fr", "omit"]),
    ],
)
def test_other_options_are_refused(earlier, capsys, options, langs, parts):
    assert run(earlier, "refused", OTHER, "--like", earlier / "old", *options, langs=langs) == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and all(part in message for part in parts), message
    assert not (earlier / "refused").exists()


def test_the_same_options_are_not(earlier):
    same = ["--lowercase", "--bpe-operations", "40"]
    assert run(earlier, "same", OTHER, "--like", earlier / "old", *same) == 0


def test_only_other_subwords_are_a_reason_to_prepare_again(earlier, tmp_path, capsys):
    """The folder of the earlier text may be moved; if it is prepared anew, the old subwords are not kept."""
    moved = shutil.copytree(earlier / "old", tmp_path / "moved")
    for folder in (earlier / "old", moved):
        assert run(earlier, "again", OTHER, "--like", folder) == 0
    assert "bpe: nothing to do" in capsys.readouterr().out and unknown(earlier / "again")
    for name in ("bpe/codes*", "data-bin/dict.en.txt"):
        file = next(moved.glob(name))
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
        assert run(earlier, "again", OTHER, "--like", moved) == 0
        assert "bpe: its options have changed" in capsys.readouterr().out
    assert run(earlier, "again", OTHER, "--like", moved, "--new-characters") == 0 and not unknown(earlier / "again")


def test_a_folder_that_is_not_finished(earlier, tmp_path, capsys):
    broken = shutil.copytree(earlier / "old", tmp_path / "broken")
    (broken / "data-bin/dict.en.txt").unlink()
    for folder, named in ((broken, "dict.en.txt"), (tmp_path / "nowhere", "manifest.json")):
        assert run(tmp_path, "refused", OTHER, "--like", folder, langs=()) == 1
        message = capsys.readouterr().err
        assert message.count("\n") == 1 and f"--like {folder}" in message and named in message
    for output in (earlier / "old", earlier / "old/../old"):
        assert run(tmp_path, "broken", OTHER, "--like", earlier / "old", "--output", output, langs=()) == 1
        assert "--output" in capsys.readouterr().err
    assert run(tmp_path, "refused", OTHER, "--new-characters") == 1 and "--like" in capsys.readouterr().err


@pytest.mark.parametrize("language", [5, ["a"], "../../fr"])
def test_languages_of_a_manifest_of_others(earlier, tmp_path, capsys, language):
    other, said = tmp_path / "old", {"source language": language}
    shutil.copytree(earlier / "old", other)
    (other / "manifest.json").write_text(json.dumps(json.loads((other / "manifest.json").read_text()) | said))
    for name, code in (("data-bin/dict", ".txt"), ("bpe/codes", "")):
        copy = other / f"{name}.{language}{code}"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.touch()
    assert run(tmp_path, "new", OTHER, "--like", other, langs=()) == 1
    assert "is not a language code" in capsys.readouterr().err
