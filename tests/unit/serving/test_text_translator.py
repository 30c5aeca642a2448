"""Text on its way through a translator: its subwords, pieces and sentences, and how they are joined again.

integration/test_translate.py compares its subwords with those of data-prep.
"""

import argparse

import pytest
from preparation.text import tidy
from preparation.tokenising import tokenise_lines

from user_dir.errors import InputError
from user_dir.preparation import PreparedText, joined, lowered, preparation_of, tidied
from user_dir.serving.exported_translator import write_facts
from user_dir.serving.text_translator import Hypothesis, TextTranslator, tokens_of_each
from user_dir.serving.translator import Translator

from support import change, write_preparation


def test_a_text_too_long_is_cut_where_it_hurts_least(files):
    translator = Translator(files()[0])
    assert translator.longest == 1023
    translator.longest = 5
    for end in ".!?।॥۔؟።፧։。！？":
        assert translator.pieces(f"a b {end} c d e f g") == [f"a b {end}", "c d e f g"]  # after a sentence
    assert translator.pieces("a b c d@@ e@@ f g") == ["a b c", "d@@ e@@ f g"]  # after a word
    assert translator.pieces("a b c d e f") == ["a b c d e", "f"]  # after as many as the model takes
    assert translator.pieces("a@@ b@@ c@@ d@@ e@@ f@@ g") == ["a@@ b@@ c@@ d@@ e@@", "f@@ g"]  # anywhere
    assert translator.pieces("a b c d e") == ["a b c d e"] and translator.pieces("") == []
    translator.longest = 4  # w1 and w2 are subwords, w3 is two
    (found,) = translator.search([translator.encode("w1 w2 . w3 w1")], nbest=2)
    parts = [translator.search([row], nbest=2)[0] for row in ("w1 w2 .", "w@@ 3 w1")]
    assert [text for text, _ in found] == [f"{first.text} {second.text}" for first, second in zip(*parts)]
    assert found[0].score == pytest.approx((parts[0][0].score + parts[1][0].score) / 2, rel=1e-4)


def test_sentences_are_translated_one_by_one(files):
    """Translations of a text and its n best; as one if that is asked for."""
    path, _ = files()
    translator = Translator(path)
    sentences, text = ["w1 w2.", "W3 w4!", "w5"], " w1 w2.  W3 w4! w5"
    one = {"batch_size": 1}  # the length of the longest source in a batch limits that of its translations
    parts, (together,) = translator.translate(sentences, **one), translator.translate([text], split_sentences=False)
    assert translator.translate(["", text, "w1"], **one) == ["", " ".join(parts), *translator.translate(["w1"])]
    assert together != " ".join(parts) and together == translator.search([translator.encode(text)])[0][0].text
    (found,) = translator.search(translator.rows([text]), nbest=2, **one)
    alone = translator.search(translator.rows(sentences), nbest=2, **one)
    assert [text for text, _ in found] == [" ".join(part.text for part in parts) for parts in zip(*alone)]
    assert found[1].score == pytest.approx(sum(row[1].score for row in alone) / 3, rel=1e-4)
    split = Translator(path, pretokenised=True)
    assert split.rows([text]) == [" ".join(text.split())]
    with pytest.raises(InputError, match="do not split it"):
        split.rows([text], split_sentences=True)


@pytest.mark.parametrize(
    "language, sentences",
    [
        ("fr", ["M. Dupont et J. Bach sont là.", "Oui ?", "Non !", "Il coûte 3.50 euros."]),
        ("en", ["It is No. 5.", "You and I agree.", "Why?"]),
        ("en", ["1. Use ASP.NET Core or System.Out.", "2. <i>He left.</i>"]),
        ("fr", ["Tom est malade.", "- Marie aussi. ♪ 😀"]),
        ("pt_BR", ["Bom dia.", "Tudo bem?"]),
        ("hu", ["Ez a XX. század.", "Az."]),
        ("pl", ["Czytam art. 5 ust. 2 i str. 7.", "To było w 2020 r.", "Potem."]),
        ("sr", ["Došao je 5. maja 2020. godine.", "Bilo ih je 5.", "Da."]),
        ("ja", ["私は学生です。", "元気ですか？"]),
        ("hi", ["राम २.५ किमी गया।", "वह १० है।", "२ और ३?"]),
        ("hi", ["वह २ कि.मी.", "दूर है।"]),
        ("sv", ["Han var trött.", "”Kom!”", "sade hon."]),
        ("sv", ["Han köpte t. ex. äpplen.", "Hon sov."]),
        ("cs", ["Firma Novák spol. s r. o. Praha vznikla v roce 1990.", "Ano."]),
        ("sv", ["Han kom.", "Hon gick. ”"]),
        ("nl", ["Hij was moe.", "'s Avonds sliep hij."]),
        ("hy", ["Ինչպե՜ս է։"]),
        ("xx", ["It rains.", "A last one of J. S."]),
    ],
)
def test_where_sentences_end(tmp_path, language, sentences):
    """Each in the form of its language, and of English in unknown ones; never after an abbreviation."""
    write_preparation(tmp_path / "data-bin", (language, "en"))
    text = PreparedText(preparation_of(tmp_path / "data-bin"), language, "en")
    between = "" if language == "ja" else "  "
    assert [sentence.strip() for sentence in text.sentences(between.join(sentences))] == sentences
    assert text.sentences(" \n ") == []


@pytest.mark.parametrize(
    "language, text",
    [
        ("fr", "Elle dit : « L'eau, c'est 100 % bleu ! »"),
        ("hi", "क्\u200dया वह १०:३० आता है? वह आता है।"),
        ("hi", "राम गया॥ वह आता है॥"),
        ("ar", "12٬345 و ٣٫٥٪"),
        ("ca", "El col·legi paral·lel"),
        ("ur", "وہ آتا ہے۔ کیا؟"),
        ("en", "❤️ 1️⃣ 👍🏽. 👩🏽\u200d💻 🇫🇷 🏴\U000e0067\U000e0062\U000e0077\U000e006c\U000e0073\U000e007f"),
        ("el", "Ναι· ό,τι όχι."),
        ("ko", "3·1절과 6·25 전쟁"),
        ("it", "Al n° 5 e al N° 7."),
        ("en", "At 7:05 or 10:45:30? In 2020: 25 people, 1.25: 30, 1: 100."),
        ("fa", "می\u200cروم، تو؛"),
        ("am", "ሰላም፣ ነው። ነው፧"),
        ("hy", "Բարև։ Հիմա՝ ոչ։"),
        ("he", "יום־יום"),
        ("de", "Es kostet 12 € pro Monat, 5 € (nicht $5) und 3 €."),
        ("de", "Zwischen 5 € - 10 € im Jahr, 5 Mio. € pro Monat, 12 € PRO MONAT."),
        ("es", "Cuesta 12 € IVA incluido, 10 $US o 5 € + 3 € (o €6)."),
        ("fr", "Cela coûte 10 $US par mois."),
        ("cs", "V roce 1990 se narodilo 5 dětí v roce 2020."),
        ("zh", "你好，世界！《书》（是）。好"),
        ("zh", '史蒂夫·乔布斯说："好。"他"走"了。也许...明天-10 - 20人'),
        ("ja", "これは、本です。「はい」"),
        ("ja", "はい。...そう！...何？-いや。"),
    ],
)
def test_text_comes_back_as_it_was(tmp_path, language, text):
    """But for quotation marks, which are normalised."""
    write_preparation(tmp_path / "data-bin", (language, language))
    prepared = PreparedText(preparation_of(tmp_path / "data-bin"), language, language)
    assert prepared.decode(prepared.encode(text)) == text.replace("« ", '"').replace(" »", '"')


JOINED = [(True, ["这是书。"] * 2, "这是书。这是书。"), (False, ["这是书。"] * 2, "这是书。 这是书。")]
JOINED += [(True, ["好！", "- - 是。", "...... 好。"], "好！--是。......好。")]
JOINED += [(True, ["A.", "", "B."], "A. B."), (True, ["", "B."], "B."), (True, ["A.", ""], "A.")]


@pytest.mark.parametrize("prepared, texts, expected", JOINED)
def test_sentences_are_joined_as_their_script_does(monkeypatch, prepared, texts, expected):
    """One without a translation leaves no space."""
    translator = TextTranslator()
    translator.kept, translator.longest, translator.text = {}, 9, argparse.Namespace(natural=prepared)
    monkeypatch.setattr(translator, "best", lambda rows, nbest: [[Hypothesis(text, -3.0)] for text in texts])
    assert translator.search(["\n".join("abc"[: len(texts)])])[0][0] == (expected, -3.0)


def test_text_is_composed_as_by_data_prep():
    text = "\u061c\u200e\u202a\u202e\u2060\u2066\u2067re\u0301su\u00adme\u00ad\u0301\u2069 \u00a0 \ufeffe\u200f"
    assert tidied(text) == tidy(text) == "r\u00e9sum\u00e9 e"
    for language in ("az", "tr"):
        lower = tokenise_lines(["IRAK İ"], f"{language}_{language.upper()}", True, False, False)[0]
        assert lowered("IRAK İ", language) == lower == "ırak i"


def test_a_limited_number_of_words_is_cached(tmp_path, monkeypatch):
    monkeypatch.setattr("user_dir.preparation.REMEMBERED", 2)
    write_preparation(tmp_path / "data-bin", ("fr", "en"))
    text = PreparedText(preparation_of(tmp_path / "data-bin"), "fr", "en")
    for word in ("un", "deux", "trois", "quatre", "cinq"):
        text.encode(word)
    assert 0 < len(text.codes.cache) <= 3


def test_a_quotation_at_the_end_is_normalised_as_by_data_prep(tmp_path):
    write_preparation(tmp_path / "data-bin", ("fr", "en"))
    subwords = PreparedText(preparation_of(tmp_path / "data-bin"), "fr", "en").encode('Il dit "non."')
    assert joined(subwords) == tokenise_lines(['Il dit "non."'], "fr", False)[0] == "Il dit &quot; non &quot; ."


@pytest.mark.parametrize("recipe, i", [({}, "ı"), ({"recipe": 4}, "ı"), *(({"recipe": n}, "i") for n in (1, 2, 3))])
def test_text_is_lowered_as_that_of_the_training(tmp_path, recipe, i):
    """The model of an earlier version is not shown letters that it has never seen."""
    for language in ("tr", "tr_TR"):
        write_preparation(tmp_path / "data-bin", (language, "en"), lowercase=True, **recipe)
        subwords = PreparedText(preparation_of(tmp_path / "data-bin"), language, "en").encode("I")
        assert subwords == i


def test_long_lines_are_split_in_linear_time(tmp_path):
    """Such as lists of numbers: no part of a sentence is read again for each part."""
    write_preparation(tmp_path / "data-bin", ("en", "fr"))
    text = PreparedText(preparation_of(tmp_path / "data-bin"), "en", "fr")
    for line in ("1. " * 20_000, "Ab.Cd." * 20_000):
        assert len(text.sentences(line)) == 1


def test_codes_of_an_earlier_subword_nmt(tmp_path):
    """Their first line is a merge, and the end of a word is a symbol of its own."""
    write_preparation(tmp_path / "data-bin", ("en", "fr"), codes="w 1\n")
    assert PreparedText(preparation_of(tmp_path / "data-bin"), "en", "fr").encode("w1 w2") == "w1 w@@ 2"


def test_half_a_character(files):
    """An unpaired surrogate, which a text from JSON can have."""
    translator = Translator(files()[0])
    for split in (False, True):
        assert translator.rows(["w1 \ud800 w2"], split) == translator.rows(["w1 \ufffd w2"], split)


def test_either_direction(files):
    """A data-bin of src to tgt trained on from tgt to src: the other side's codes."""
    path, data = files(separate=True)
    (data.parent / "bpe/codes.tgt").write_text("#version: 0.2\nw 3</w>\n")
    assert Translator(path).encode("w1 w3") == "w1 w@@ 3"
    change(path, task__source_lang="tgt", task__target_lang="src")
    assert Translator(path).encode("w1 w3") == "w@@ 1 w3"
    change(path, task__source_lang=None, task__target_lang=None)  # left to fairseq
    assert Translator(path).encode("w1 w3") == "w1 w@@ 3"


def test_an_export_has_the_codes_of_its_source(tmp_path):
    """And the dictionary that limits their subwords."""
    write_preparation(tmp_path / "data-bin", separate=True)
    (tmp_path / "bpe/vocabulary.tgt").touch()
    (tmp_path / "ct2").mkdir()
    write_facts(tmp_path / "ct2", tmp_path / "data-bin", {"source_lang": "tgt"})
    assert {path.name for path in (tmp_path / "ct2/bpe").iterdir()} == {"codes.tgt", "vocabulary.tgt"}


@pytest.mark.parametrize("max_tokens, workers, each", [(6000, 3, 2000), (1500, 9, 500), (50, 3, 50), (6000, 0, 6000)])
def test_workers_share_the_subwords_of_a_batch(max_tokens, workers, each):
    assert tokens_of_each(max_tokens, workers) == each


def test_text_as_it_stands(files):
    """Data that data-prep did not prepare may be decomposed."""
    path, data = files()
    (data.parent / "manifest.json").unlink()
    translator = Translator(path, pretokenised=True)
    assert translator.encode(" w1  e\u0301 don&apos;t\u00a0w@@ 2 ") == "w1 e\u0301 don&apos;t w@@ 2"
    assert translator.decode("w1 &apos;t w@@ 2 w@@") == "w1 &apos;t w2 w"  # the search may end within a word
