"""Reads what was translated: fairseq-generate's output or plain text, and the reference.

fairseq-generate prints S-, T-, H- and D- lines (source, reference, hypothesis, detokenised hypothesis), each with the
number of its segment, batch by batch. H- is as tokenised as the training data; D- differs from it only under
--tokenizer, which detokenises S- and T- too.
"""

import argparse
import dataclasses
import logging
import pathlib
import re
import unicodedata
import zlib

from sacrebleu.utils import smart_open

from ...errors import InputError
from ...preparation import LANGUAGE, detokeniser, language_of
from .command import refuse_repeated
from .records import TRANSLATIONS

# A line without text may lack the tab, white space at the end. Only with a score is it one of fairseq's hypotheses.
LINE = re.compile(r"([ST]|[HD](?=-\d+\t(?:-?\d|-inf|nan)))-(\d+)(?:\t(.*))?$")
NBEST = re.compile(r"\d+\t-?\d+\.\d{4}(\t|$)")  # of nmt-translate; without text it has lost the tab
TYPOGRAPHIC = frozenset("“”„‘’«»–—…")  # Moses' normalisation of the training text writes them as on a keyboard
SUBWORDS = re.compile(r"@@( |$)|▁")  # subword-nmt's and sentencepiece's


@dataclasses.dataclass
class Run:
    """A test set as one model translated it; a list has a string for each segment, in the order of the test set."""

    path: pathlib.Path
    hypotheses: list[str]  # detokenised
    references: list[str]  # detokenised
    hypothesis_tokens: list[str] | None = None  # H- and T- as printed, where fairseq did not detokenise
    reference_tokens: list[str] | None = None


def read_lines(path: pathlib.Path) -> list[str]:
    """The lines of a plain or gzipped text file, without a byte order mark and white space at their ends.

    They are in Unicode's composed form, as translations are: otherwise a perfect one would have hardly any words of a
    reference whose letters are not composed.

    Raises:
        InputError: if it is missing, no text in UTF-8 or empty
    """
    try:
        with smart_open(str(path), encoding="utf-8-sig") as file:
            text = file.read()  # at once: the place of a wrong byte would be that in a part of 8,192
    except UnicodeDecodeError as error:
        remedy = "name another file, or convert it with iconv"
        raise InputError(f"{path} is not text in UTF-8 (byte {error.start}): {remedy}") from error
    except (OSError, EOFError, zlib.error) as error:  # the latter two of damaged .gz files
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be read: {reason}: name another file") from error
    lines = [unicodedata.normalize("NFC", line).rstrip() for line in text.removesuffix("\n").split("\n")]
    if not any(lines):
        raise InputError(f"{path} is empty: name another file")
    return lines


def translations_of(path: pathlib.Path) -> pathlib.Path:
    """fairseq-generate's output in the folder of a run; a file stands for itself."""
    return path / TRANSLATIONS if path.is_dir() else path


def read_run(path: pathlib.Path, references: list[str] | None, language: str, tokenised: bool | None = None) -> Run:
    """The run whose translations are in `path`: fairseq-generate's output, or plain text with a hypothesis a line.

    Args:
        references: detokenised, one for each segment; None takes the T- lines
        language: of the hypotheses, for Moses' rules
        tokenised: whether hypotheses (and T- lines) are to be detokenised; None: plain text is not tokenised, and
            fairseq's is if its D- lines equal its H- lines

    Raises:
        InputError: if segments are missing, duplicated or left in subwords, or there is no reference
    """
    lines = read_lines(path)
    found = segments(path, lines)
    if not found["H"] and not found["D"]:
        if references is None:
            raise InputError(f"{path} is plain text, without the T- lines of fairseq-generate: give --reference FILE")
        refuse_nbest(path, lines)
        if len(lines) != len(references):
            counts = f"{path} has {len(lines)} lines and the reference has {len(references)}"
            raise InputError(f"{counts}: they must be of the same test set")
        found = {"D": dict(enumerate(lines)), "H": {}, "T": {}}
    hypotheses = in_order(path, found["H"] or found["D"], references and len(references))
    detokenised = in_order(path, found["D"], len(hypotheses)) if found["D"] else hypotheses
    refuse_subwords(path, hypotheses, references)
    if tokenised is None:
        tokenised = bool(found["H"]) and detokenised == hypotheses
    plain = detokeniser(language) if tokenised else str
    printed = None
    if found["T"]:  # as fairseq's --eval-bleu does: tokenisers would find pieces of <<unk>> in a hypothesis's <unk>
        printed = [text.replace("<<unk>>", "UNKNOWNTOKENINREF") for text in in_order(path, found["T"], len(hypotheses))]
    if references is None and printed is None:
        raise InputError(f"{path} has no T- lines (fairseq-interactive knows no reference): give --reference FILE")
    if references and printed and not any(map(alike, map(plain, printed), references)):
        message = "no line of the reference resembles the T- line of %s: is it this test set, and is it in %s?"
        logging.warning(message, path, language)  # no error: it may be another translation of the same set
    tokens = (hypotheses, printed) if tokenised and printed else (None, None)
    return Run(path, [*map(plain, detokenised)], references or [*map(plain, printed)], *tokens)


def refuse_nbest(path: pathlib.Path, lines: list[str]) -> None:
    """Raises InputError if all `lines` are of nmt-translate --nbest."""
    if all(NBEST.match(line) for line in lines):
        raise InputError(f"{path} is output of nmt-translate --nbest: translate without this option")


def refuse_subwords(path: pathlib.Path, hypotheses: list[str], references: list[str] | None) -> None:
    """Raises InputError if one of `hypotheses` is in subwords, and its reference has no such marks as text."""
    for segment, text in enumerate(hypotheses):
        expected = references[segment] if references else ""  # which may have them as text, such as "@@ -1,3"
        if SUBWORDS.search(text) and not SUBWORDS.search(expected):
            remedy = "translate with --remove-bpe (or --remove-bpe sentencepiece), or join nmt-translate's with sed"
            raise InputError(f"{path}: segment {segment} is in subwords ({text[:40]} …): {remedy}")


def alike(one: str, other: str) -> bool:
    """Whether two lines have the same letters and digits (and some), as before and after tokenisation."""
    return [*filter(str.isalnum, one.casefold())] == [*filter(str.isalnum, other.casefold())] != []


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that describe the files to `read_runs`."""
    help = "as published: detokenised, a line for each segment (default: the T- lines)"
    parser.add_argument("--reference", type=pathlib.Path, metavar="FILE", help=help)
    help = "language of the hypotheses (default: the ending of --reference's name, if it has two letters)"
    parser.add_argument("--target-lang", metavar="CODE", help=help)
    help = "whether hypotheses (and T- lines) are Moses tokens and are to be detokenised; auto: plain text is not, "
    help += "fairseq-generate's output is if it was made without --tokenizer (no: sentencepiece on untokenised text)"
    parser.add_argument("--tokenised", choices=("auto", "yes", "no"), default="auto", help=help)


def read_runs(paths: list[pathlib.Path], args: argparse.Namespace) -> tuple[list[Run], str]:
    """The runs and their language, by the options of `add_options`.

    Raises:
        InputError: as read_run; if the language is not known, a file is given twice, or their T- lines are of
            different test sets
    """
    name = args.reference.name if args.reference else ""
    ending = re.search(r"\.(?!gz$)([a-z]{2})(\.gz)?$", name)  # test.de, test.de.gz
    language = args.target_lang or ending and ending[1]
    if not language:
        reason = "the language of the hypotheses is not known (Moses' rules depend on it)"
        raise InputError(f"{reason}: give --target-lang, e.g. --target-lang de")
    if not LANGUAGE.fullmatch(language):
        raise InputError(f"--target-lang {language} is not a language code: give one such as de")
    language = language_of(language)  # for fr_CA and FR Moses would use the rules of no language
    paths = [*map(translations_of, paths)]
    refuse_repeated(paths)
    tokenised = {"yes": True, "no": False, "auto": None}[args.tokenised]
    references = read_lines(args.reference) if args.reference else None  # once, because it may be a pipe
    runs = [read_run(path, references, language, tokenised) for path in paths]
    for run in runs:
        if run.references != runs[0].references:
            both = f"{run.path} and {runs[0].path}"
            raise InputError(f"{both} have different references (T- lines): they must be of the same test set")
    never = TYPOGRAPHIC.difference(*(text for run in runs for text in run.hypotheses))
    marked = [line for line in references or [] if not never.isdisjoint(line)]
    if len(marked) > len(runs[0].hypotheses) / 100:
        marks = " ".join(sorted(never.intersection("".join(marked))))
        message = "%d of %d lines of %s have %s, which no translation has: was the training text normalised?"
        logging.warning(message, len(marked), len(references), args.reference, marks)
    return runs, language


def segments(path: pathlib.Path, lines: list[str]) -> dict[str, dict[int, str]]:
    """The text of each kind of line ("S", "T", "H", "D") by segment; raises InputError if one has several."""
    found: dict[str, dict[int, str]] = {kind: {} for kind in "STHD"}
    repeated = ""
    for number, line in enumerate(lines, 1):
        if match := LINE.match(line):
            kind, segment, text = match[1], int(match[2]), match[3] or ""
            if kind in "HD":  # the model's score comes first
                text = text.partition("\t")[2]
            if segment in found[kind]:
                reason = f"{kind}-{segment} occurs a second time. One best hypothesis for each segment is scored"
                remedy = "translate with --nbest 1, and keep each run in a file of its own"
                repeated = repeated or f"{path}, line {number}: {reason}: {remedy}"
            found[kind][segment] = text
    if repeated and (found["H"] or found["D"]):  # else it is plain text with such words
        raise InputError(repeated)
    return found


def in_order(path: pathlib.Path, texts: dict[int, str], count: int | None) -> list[str]:
    """Texts 0 to `count` - 1, or to the last there is; raises InputError if there are fewer or more."""
    count = count or max(texts) + 1
    missing = sorted(set(range(count)) - set(texts))
    if missing:
        raise InputError(
            f"{path}: {len(missing)} of {count} segments were not translated, the first is number {missing[0]} "
            "counted from 0. fairseq-generate leaves some out unless it is given --required-batch-size-multiple 1; "
            "or its output is cut off, or the reference is of another test set"
        )
    if len(texts) > count:
        counts = f"{path} has {len(texts)} segments and the reference has {count}"
        raise InputError(f"{counts}: they must be of the same test set")
    return [texts[segment] for segment in range(count)]
