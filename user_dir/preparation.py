"""Prepares a sentence like the training text, and converts translations back to text.

data-prep saves its options in manifest.json beside data-bin, and the subword codes in bpe/. This module uses the same
libraries. data-prep reads whole corpora and starts without torch, so it has its own, faster code; tests verify that
both produce the same tokens.
"""

import dataclasses
import io
import json
import pathlib
import re
import unicodedata
from collections.abc import Callable

from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer
from subword_nmt.apply_bpe import BPE

from .errors import InputError

LANGUAGE = re.compile(r"[A-Za-z]+([_-][A-Za-z0-9]+)*")  # such as fr or pt_BR; part of file names
# The spaces that Moses, which knows Latin punctuation, leaves in text of other scripts: before marks that follow
# a word, within numbers and words, and around full-width punctuation. Also those in times such as 3:30, from which
# "section 1: 25 people" cannot be told.
TIME = r"(?<=\d)(?<!\d{3})(?<![.,]\d)(?<![.,]\d\d) ?: ?(?=[0-5०-५০-৫٠-٥۰-۵]\d\b)"
CJK = "\u2e80-\u9fff\uf900-\ufaff"
WITHIN = (
    rf"(?<=\d) [٫٬] (?=\d)|(?<=[lL{CJK}가-힣]) · (?=[lL{CJK}가-힣])| [\u200c\u200d־] "  # ٣٫٥, col·legi, and joiners
    rf"|(?<=\d) · (?=\d+ ?[{CJK}가-힣])"  # 3·1절, 9·11事件
    r"|(?<=[\u0370-\u03ff\u1f00-\u1fff]) (?=·)|(?<=\b[όΌ],) (?=τι)|(?<=\b[Nn]) (?=°)"  # Ναι· όχι, ό,τι, and n° 5
)
QUOTED = rf"(?<=[{CJK}]) (?=[\"'][{CJK}])|(?<=[{CJK}！-～][\"']) (?=[{CJK}])"
DASH = rf"(?:\.{{3,}}|- -|-) (?=[{CJK}])"
DASHES = rf"(?<=[{CJK}]) ?{DASH}"  # and dots, as Moses' normalisation writes — and …
EMOJI = " (?=[\ufe0f\u20e3🏻-🏿\U000e0020-\U000e007f])|(?<=[🇦-🇿]) (?=[🇦-🇿])"  # ❤️, 1️⃣, 👍🏽 and flags: several characters
AROUND = rf" (?=[।॥۔؟،؛٪።፣፤፥፧։՝])| ?[\u3000-\u303f！-／：-＠［-｀｛-･] ?(?:{DASH})?"
SPACES = re.compile(f"{TIME}|{WITHIN}|{QUOTED}|{DASHES}|{EMOJI}|{AROUND}")
AFTER_AMOUNT = re.compile(  # 5 €pro: Moses takes € for that of €5
    r"(?:(?<=\d )\$(?![A-Z]+\b)|(?<= )[£¥฿৳\u20a0-\u20bf])(?=[^\W\d_]|\(|[-+=] )"
)
# Soft hyphens, marks of direction, joiners and byte order marks: Moses would cut words there.
INVISIBLE = re.compile("[\u00ad\u061c\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
LETTER = re.compile(r"(?:<[^<>]*>|[\W\d_])*+[^\W\d_]")  # the first one outside of tags
CONTINUED = "@@"  # the end of every subword but the last of a word
DOTLESS = ("az", "tr")  # languages in which I is the capital of ı, and İ that of i
REMEMBERED = 300_000  # the most words whose subwords are cached: about 100 MB


@dataclasses.dataclass(frozen=True)
class Preparation:
    """The options with which data-prep prepared a data-bin."""

    folder: pathlib.Path  # contains manifest.json, bpe/ and data-bin/
    languages: tuple[str, str]  # source and target language
    tokenise: bool  # otherwise the text and the translations are tokens separated by spaces
    normalise: bool  # punctuation
    lowercase: bool
    separate: bool  # subword codes per language
    dotless: bool  # Turkish I in lower case is ı; i for the first three recipes of data-prep


def preparation_of(data: pathlib.Path) -> Preparation | None:
    """The options in the manifest beside the data-bin folder `data`; None if there is none.

    Raises:
        InputError: if it lacks some
    """
    # data-bin may be a link to another disk, and so may its parent folder.
    path, linked = (folder.parent / "manifest.json" for folder in (data.absolute(), data.resolve()))
    path = path if path.exists() else linked
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        tokens, subwords = (manifest["stages"][stage]["options"] for stage in ("tok", "bpe"))
        languages = manifest["source language"], manifest["target language"]
        defaults = {"tokenise": True, "normalise": True} | tokens
        choices = defaults["tokenise"], defaults["normalise"], defaults["lowercase"], subwords["separate"]
        if not all(LANGUAGE.fullmatch(language) for language in languages) or {*map(type, choices)} != {bool}:
            raise ValueError("an option has an invalid value")
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        remedy = "run data-prep/prepare.py again, or name another folder"
        raise InputError(f"{path} does not say how the text was prepared ({reason}): {remedy}") from None
    return Preparation(path.parent, languages, *choices, tokens.get("recipe") not in (1, 2, 3))


def codes_of(prepared: Preparation, source: str) -> pathlib.Path:
    """The subword codes of text in the language `source`."""
    return prepared.folder / "bpe" / (f"codes.{source}" if prepared.separate else "codes")


def vocabulary_of(codes: pathlib.Path) -> pathlib.Path:
    """The dictionary that limits subwords, beside the codes of own text and of `prepare.py --like`."""
    return codes.with_name(codes.name.replace("codes", "vocabulary"))


def read_codes(path: pathlib.Path) -> BPE:
    """subword-nmt's codes; subwords that the dictionary beside them lacks, if there is one, are split further.

    Raises:
        InputError: if they are missing or malformed
    """
    file = path
    try:
        with open(file, encoding="utf-8", newline="\n") as stream:
            lines = stream.read().rstrip("\n").split("\n")
        for number, line in enumerate(lines, 1):  # subword-nmt would write to the standard error and exit
            if len(line.strip("\r ").split(" ")) != 2:
                raise ValueError(f"invalid line {number}")
        codes = BPE(io.StringIO("\n".join(lines), newline="\n"))
        if codes.version not in ((0, 1), (0, 2)):
            raise ValueError(f"version {'.'.join(map(str, codes.version))}")
        if (file := vocabulary_of(path)).is_file():
            codes.vocab = {line.rpartition(" ")[0] for line in file.read_text(encoding="utf-8").split("\n")}
    except FileNotFoundError:
        remedy = "keep bpe/ and manifest.json beside data-bin/, or give text in subwords (--pretokenised)"
        raise InputError(f"there are no subword codes {path}: {remedy}") from None
    except ValueError as error:
        raise InputError(f"{file} is not subword-nmt's ({error}): run data-prep/prepare.py again") from None
    return codes


def tidied(text: str) -> str:
    """`text` in Unicode's composed form, with single spaces, and without INVISIBLE characters."""
    return " ".join(unicodedata.normalize("NFC", INVISIBLE.sub("", text)).split())


def joined(subwords: str) -> str:
    """Joins subwords to tokens, both separated by spaces."""
    return (subwords + " ").replace(f"{CONTINUED} ", "").rstrip()


def closed_up(text: str) -> str:
    """Text that sacremoses has detokenised, without the spaces that it leaves in times and other scripts."""
    text = SPACES.sub(lambda found: found[0].replace(" ", ""), text)
    return AFTER_AMOUNT.sub(r"\g<0> ", text)


def detokeniser(language: str) -> Callable[[str], str]:
    """From Moses' tokens, separated by spaces, to text; without sacremoses' rules for Czech, which write "roku2020"."""
    code = language_of(language)
    moses = MosesDetokenizer("" if code == "cs" else code)
    return lambda tokens: closed_up(moses.detokenize(tokens.split()))


def language_of(code: str) -> str:
    """The language of a code such as pt_BR, whose rules Moses and others have."""
    return re.split("[_-]", code)[0].lower()


def lowered(text: str, language: str) -> str:
    """`text` in lower case."""
    return (text.replace("I", "ı").replace("İ", "i") if language in DOTLESS else text).lower()


class PreparedText:
    """Converts text to subwords and back, for a model that translates `source` to `target`.

    Attributes:
        natural: the text is as people write it, not in tokens

    Raises:
        InputError: if the subword codes are missing or malformed
    """

    def __init__(self, prepared: Preparation, source: str, target: str):
        self.prepared = prepared
        self.codes = read_codes(codes_of(prepared, source))
        self.normaliser, self.tokeniser = MosesPunctNormalizer(source), MosesTokenizer(source)
        self.detokenise = detokeniser(target)
        self.language = language_of(source)
        self.abbreviations = frozenset(f"{word}." for word in self.tokeniser.NONBREAKING_PREFIXES)
        self.before_numbers = frozenset(f"{word}." for word in self.tokeniser.NUMERIC_ONLY_PREFIXES)
        self.natural = prepared.tokenise

    def sentences(self, text: str) -> list[str]:
        """The sentences of a line of `natural` text: sentencex's, but all have letters, and none ends in one of Moses'
        abbreviations, within a word such as २.५ or ASP.NET, or between ordinal and lower case (5. maja, XX. század).

        Raises:
            ModuleNotFoundError: where sentencex is not installed
        """
        from sentencex import segment

        sentences, unfinished, letters, opened = [], "", False, ""
        for part in segment(self.language, tidied(text)):
            part, opened = opened + part, ""
            if mark := re.search(r"(?<=\s)['”’]+$", part):  # of the next sentence: ”Kom!”, ’s Avonds
                part, opened = part[: mark.start()], mark[0]
            if sentences and not unfinished and self.continues(sentences[-1][-99:], part):
                unfinished, letters = sentences.pop(), True
            unfinished += part
            letters = letters or bool(LETTER.match(part))
            if letters and not self.abbreviated(unfinished[-99:]):  # a long sentence takes no longer
                sentences.append(unfinished)
                unfinished, letters = "", False
        unfinished += opened
        if sentences and not letters:
            unfinished = sentences.pop() + unfinished
        return [*sentences, unfinished] if unfinished else sentences

    def continues(self, before: str, part: str) -> bool:
        """Whether the sentence that ends in `before` goes on with `part`, as after "5. " with maja, "ASP." with NET."""
        ordinal = part[0].islower() and re.search(r"(\d|\b[IVXLC]{2,})\. $", before)
        numbered = part[0].isdigit() and not self.before_numbers.isdisjoint(before.split()[-1:])
        within = part[0].isalnum() and re.search(r"[\w\u0900-\u0dff][.,՜]$", before)  # also कि.मी.
        return bool(ordinal or numbered or within)

    def abbreviated(self, text: str) -> bool:
        """Whether `text` ends in one of Moses' abbreviations, which have up to four words, such as spol. s r. o."""
        last = text.split()[-4:]
        return not self.abbreviations.isdisjoint(" ".join(last[number:]) for number in range(len(last)))

    def encode(self, text: str) -> str:
        """Subwords separated by spaces, as in the files that data-prep leaves in bpe/."""
        text = tidied(text)
        if self.prepared.normalise:
            text = self.normaliser.normalize(text + "\n")  # its command does not strip the end of the line either
        if self.prepared.tokenise:
            text = self.tokeniser.tokenize(text, return_str=True)
        if self.prepared.lowercase:
            text = lowered(text, self.language) if self.prepared.dotless else text.lower()
        if len(self.codes.cache) > REMEMBERED:
            self.codes.cache = {}  # another thread may be reading the old one
        return " ".join(self.codes.segment_tokens(text.split(" ")))

    def decode(self, subwords: str) -> str:
        """Text from subwords separated by spaces."""
        tokens = joined(subwords)
        return self.detokenise(tokens) if self.prepared.tokenise else tokens


class SplitText:
    """Text that consists of subwords already: translations are tokens."""

    natural = False
    decode = staticmethod(joined)

    @staticmethod
    def encode(text: str) -> str:
        return " ".join(text.split())  # its letters stay as they are, composed or not
