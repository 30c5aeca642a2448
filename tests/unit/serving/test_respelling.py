"""Text is respelled where a model has never seen a character or a case, and nowhere else."""

import pytest

from user_dir.preparation import PreparedText, preparation_of
from user_dir.serving.exported_translator import ExportedTranslator
from user_dir.serving.respelling import Respelling, characters_of
from user_dir.serving.translator import Translator
from user_dir.tools import export_ctranslate2

from support import OLD, write_preparation

LOWER = "abcdefghijklmnopqrstuvwxyz"
CODES = "#version: 0.2\ni l</w>\nf a\nfa i\nfai t</w>\nI l</w>\nX Y</w>\nI X</w>\n"


@pytest.fixture
def respelled(tmp_path):
    """respelled(line, known, language="fr"): for a model that knows these characters."""
    write_preparation(tmp_path / "data-bin", ("fr", "en"), CODES, normalise=False)
    prepared = preparation_of(tmp_path / "data-bin")
    return lambda line, known, language="fr": Respelling(PreparedText(prepared, language, "en"), known)(line)


@pytest.mark.parametrize(
    "known, line, expected",
    [
        (LOWER, "Il Fait", "il fait"),  # of lower-cased text
        (LOWER, "ÉtÉ", "ete"),
        (LOWER + "é", "ÉtÉ", "été"),
        (LOWER + "é", "e\u0301te\u0301", "été"),  # composed
        (LOWER + "É", "É", "É"),
        (LOWER + "’", "l'eau", "l’eau"),
        (LOWER + "–", "a — b ‐ c", "a – b – c"),
        (LOWER + "-—", "a — b ‐ c", "a — b - c"),
        (LOWER + "“”", "a „b“", "a “b“"),
        (LOWER + LOWER.upper(), "ﬁn ſo ß", "fin so ss"),
        (LOWER + "1!", "ﬁn １！", "fin 1!"),
        (LOWER + "4", "a ४ ٤ ৪ ۴", "a 4 4 4 4"),
        (LOWER + "४", "a 4", "a ४"),
        (LOWER + "/", "℀ ½", "a/c ½"),  # in several tokens
        ("क्या", "क्\u200dया", "क्या"),  # without the joiner
        ("बाजार", "बाज\u093cार", "बाजार"),  # without the dot
        ("बज", "बाज", "बाज"),  # never without a vowel that is written out
        ("कय", "क्य", "क्य"),  # nor without the virama
        ("السلام", "السَّلامُ", "السلام"),
        ("замок", "за\u0301мок", "замок"),
        ("❤", "❤\ufe0f", "❤"),
        ("کتاب یک", "كتاب يك", "کتاب یک"),
        (LOWER, "漢 a", "漢 a"),  # nothing means the same
    ],
)
def test_unknown_characters(respelled, known, line, expected):
    assert respelled(line, known) == expected


@pytest.mark.parametrize(
    "line, expected",
    [
        ("IL FAIT", "Il fait"),
        ("Il FAIT", "Il FAIT"),  # not all of it
        ("IL", "IL"),  # an abbreviation, perhaps
        ("10 IL 8", "10 IL 8"),
        ("IL 漢", "IL 漢"),  # in a script without case
        ("IL 2º", "IL 2o"),  # as IL 2
        ("IL!", "Il!"),
        ("- IL FAIT", "- Il fait"),
        ("ΑΣ ΠΑ", "Ας πα"),
        ("LA 2ª VEZ, EL 1º DÍA", "La 2a vez, el 1o dia"),
        ("DIE GROßE STRAßE", "Die grosse strasse"),
        ("XY IX", "XY IX"),  # has subwords for them
    ],
)
def test_sentences_in_capitals(respelled, line, expected):
    assert respelled(line, LOWER + LOWER.upper()) == expected


def test_long_capitals_take_linear_time(respelled):
    assert respelled("A" * 400_000, LOWER.upper()) == "A" * 400_000


def test_capitals_of_a_language_with_two_kinds_of_i(respelled):
    assert respelled("IŞIK İL", LOWER + LOWER.upper() + "ışİ", "tr") == "Işık il"


def test_characters_of_a_dictionary():
    assert characters_of(["<s>", "<unk>", "ab@@", "ba", "<", "madeupword0000"]) == "<@ab"


def test_both_engines_respell(tmp_path):
    pytest.importorskip("ctranslate2")
    checkpoint = OLD / "vaswani_transformer.pt"
    export_ctranslate2.main([str(checkpoint), "--data", str(OLD / "data-bin"), "--output", str(tmp_path / "ct2")])
    translator, exported = Translator(checkpoint, data=OLD / "data-bin"), ExportedTranslator(tmp_path / "ct2")
    sentence = (OLD / "test.fr").read_text(encoding="utf-8").splitlines()[0]
    rows = translator.encode(sentence.upper()), translator.encode(f"ﬁ {sentence}")
    assert rows == (exported.encode(sentence.upper()), exported.encode(f"ﬁ {sentence}"))
    assert rows[0] == translator.encode(sentence.capitalize()) and rows[1].startswith(translator.encode("fi"))
    assert translator.encode(sentence) == translator.text.encode(sentence)
