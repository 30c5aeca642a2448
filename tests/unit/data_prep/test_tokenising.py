"""Tokens of remembered words are those that sacremoses gives to whole sentences."""

import pathlib
import random
import re
import shutil
import subprocess

import prepare
import pytest
from preparation.text import tidy
from preparation.tokenising import _TO_NORMALISE, tokeniser
from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer
from unit.data_prep.support import TRICKY


def test_the_readmes_perl_has_no_letter_of_its_own():
    """Without `use utf8` perl reads ー in its script as three other letters, the first of them ã."""
    page = pathlib.Path(prepare.__file__).with_name("README.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"`perl -CSD -pe '(.*?)'`", page)
    assert script.isascii()
    if shutil.which("perl"):  # which leaves marks with their letters, as data-prep will compose them
        command = ["perl", "-CSD", "-pe", script]
        spaced = subprocess.run(command, input="か\u3099ー漢", capture_output=True, encoding="utf-8", check=True).stdout
        assert tidy(spaced) == "が ー 漢"


def test_languages_without_spaces_between_words():
    """As README.md says: spaces between Chinese and Japanese words come and go, some other scripts are cut apart."""

    def undone(language, text):
        return MosesDetokenizer(lang=language).detokenize(tokeniser(language)(text).split(" "))

    for text in ("我 喜欢 吃 苹果 。", "私 は リンゴ を 食べる の が 好き です 。"):
        assert tokeniser("ja")(text) == text and undone("ja", text) == text.replace(" ", "")
    for word in ("แอปเปิ้ล", "ខ្ញុំ", "ຂ້ອຍ", "ပန်းသီး", "ཀུ་ཤུ་"):  # Thai, Khmer, Lao, Burmese, Tibetan
        assert " " in undone("th", word)  # which has no rules of its own, as the others


@pytest.mark.parametrize("language", ["en", "fr", "de", "it", "cs"])
def test_remembering_words_changes_nothing(language):
    generator = random.Random(3)
    alphabet = "abcé19_-.,?!' " * 4 + '"`´’‘“”„«»–—…;:()%º。\u00ad\u00a0<>&|[]$€'
    normalise, tokenise = MosesPunctNormalizer(lang=language).normalize, MosesTokenizer(lang=language).tokenize
    texts = ["".join(generator.choices(alphabet, k=generator.randrange(16))) for _ in range(500)]
    texts += [" ".join(generator.choices(TRICKY.split(), k=generator.randrange(7))) for _ in range(500)]
    skipped = [text for text in texts if not _TO_NORMALISE.search(text)]
    assert 100 < len(skipped) < 900
    for text in texts:
        assert tokeniser(language)(text) == tokenise(normalise(text + "\n"), return_str=True)
        assert tokeniser(language, normalise=False)(text) == tokenise(text, return_str=True)
