#!/usr/bin/env python3
"""Makes a fairseq data-bin from a corpus of the registry, or from two text files.

  python data-prep/prepare.py tatoeba --source-lang fr --target-lang en --output data/fr-en
  python data-prep/prepare.py --train my.fr my.en --source-lang fr --target-lang en --output data/mine
  python data-prep/prepare.py --train other.fr other.en --like data/mine --output data/other
  python data-prep/prepare.py --list

The output folder gets raw/ (untokenised text: its test set is the reference), tok/ (tokenised), clean/ (the
training text that is used), bpe/ (subwords and their codes), data-bin/ (for fairseq-train and fairseq-generate),
manifest.json (counts, options, versions, checksums) and ATTRIBUTION. A finished stage is skipped; if its options or
your text have changed, it and the later stages are replaced.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from preparation import corpora
from preparation.earlier import Earlier
from preparation.errors import PreparationError, exit_status
from preparation.pipeline import Preparation
from preparation.stages import ORDER

MAX_LENGTH = 175  # words or tokens per sentence, unless the registry says otherwise
BPE_OPERATIONS = 8000
# The codes of two letters of languages that Moses takes apart wrongly by any other code, and cannot put together again.
SHORTER = {"eng": "en", "fra": "fr", "fre": "fr", "ita": "it", "jpn": "ja", "kor": "ko", "zho": "zh", "cmn": "zh"}
MAX_RATIO = 3.0  # how many times longer one side of a pair may be, unless the registry says otherwise


class Parser(argparse.ArgumentParser):
    """Reports an error in one line, without all options, and takes no abbreviations, which recipes would overlook."""

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str):
        raise PreparationError(f"{message}; see --help")


class Once(argparse.Action):
    """Stores an option's files, and refuses a second use, where argparse would keep only the last."""

    def __call__(self, parser, options, files, option):
        if getattr(options, self.dest):
            parser.error(f"{option} is given twice; join the texts, for example with cat, or give it once")
        setattr(options, self.dest, files)


def folder(value: str) -> Path:
    """Reads an option's value; an empty one, as of an unset variable, would be the current folder."""
    if not value:
        raise ValueError
    return Path(value)


def number(kind: type, least: float):
    """A function that reads option values of at least `least`."""

    def read(value: str):
        if not (result := kind(value)) >= least:  # also true for nan
            raise ValueError
        return result

    read.__name__ = f"{'whole ' if kind is int else ''}number, at least {least},"
    return read


def parser() -> argparse.ArgumentParser:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "fairseq-transformer-variants"
    result = Parser(prog="prepare.py", description=__doc__)
    add = result.add_argument
    add("corpus", nargs="?", help="name of a corpus in the registry")
    add("--list", action="store_true", help="show the corpora of the registry")
    for part in corpora.PARTS:
        default = "" if part == "train" else "; split off from the training pairs if not given"
        names = ("SOURCE", "TARGET")
        help = f"your text files, one sentence per line{default}"
        add(f"--{part}", nargs=2, type=Path, action=Once, metavar=names, help=help)
    add("--source-lang", metavar="CODE", help="language to translate from, such as fr (needed without --like)")
    add("--target-lang", metavar="CODE", help="language to translate to, such as en (needed without --like)")
    add("--output", type=folder, metavar="FOLDER", help="folder for all results (needed)")
    add("--mirror", type=Path, metavar="FOLDER", help="take the corpus's files from this folder, not from the network")
    add("--cache", type=Path, metavar="FOLDER", default=cache, help="keep downloads here (default: %(default)s)")
    registry = Path(__file__).with_name("corpora.toml")
    beside = "registry of corpora (default: corpora.toml beside prepare.py)"
    add("--registry", type=Path, metavar="FILE", default=registry, help=beside)
    count, ratio = number(int, 1), number(float, 1)
    add("--bpe-operations", type=count, metavar="N", help=f"merges to learn (default: {BPE_OPERATIONS})")
    add("--separate-bpe", action="store_true", help="learn subwords and make a dictionary for each language separately")
    given = "do not tokenise: the text is tokens separated by spaces, of a tokeniser of your choice; nmt-translate "
    given += "then reads and writes tokens without being told"
    add("--pretokenised", action="store_true", help=given)
    add("--lowercase", action="store_true", help="lower-case everything except raw/")
    longest = f"most words in a training sentence (default: the registry's, or {MAX_LENGTH})"
    add("--max-length", type=count, metavar="N", help=longest)
    furthest = f"how many times longer one side of a training pair may be (default: the registry's, or {MAX_RATIO})"
    add("--max-ratio", type=ratio, metavar="R", help=furthest)
    like = "use tokenisation, subwords and dictionaries of this prepared folder, to train its models further"
    add("--like", type=Path, metavar="FOLDER", help=like)
    appended = "with --like: append characters that its dictionaries lack (then run nmt-extend-vocabulary)"
    add("--new-characters", action="store_true", help=appended)
    size = "pairs to split off for each part that is not given (default: 2000, or a twentieth of a small corpus)"
    add("--held-out", type=count, metavar="N", help=size)
    add("--max-pairs", type=count, metavar="N", help="train on only N pairs, always the same ones")
    add_workers(result)
    return result


def cores(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """The cores that this process may use, as examples/install/cores.sh: `limit` is a container's, of time on them."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = map(int, limit.read_text().split())
        return min(allowed, max(1, quota // period))
    except (OSError, ValueError):  # there is none, or it is max
        return allowed


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Adds --workers, by default one for each core that this process may use."""
    help = "processes (default: one per core)"
    parser.add_argument("--workers", type=number(int, 1), metavar="N", default=cores(), help=help)


def check(options: argparse.Namespace) -> None:
    """Raises a PreparationError if options are missing or contradict each other."""
    if bool(options.corpus) == bool(options.train):
        raise PreparationError("name either a corpus (see --list) or your own files with --train SOURCE TARGET")
    if options.corpus and (options.valid or options.test):
        raise PreparationError("--valid and --test need --train; a corpus of the registry has its own")
    if options.train and options.mirror:
        raise PreparationError("--mirror has the files of a corpus of the registry, and --train names yours; omit one")
    if options.new_characters and not options.like:
        raise PreparationError("--new-characters needs --like: other dictionaries have all characters of the text")
    for name in ("source_lang", "target_lang", "output"):
        if not getattr(options, name):
            raise PreparationError(f"--{name.replace('_', '-')} is missing: add it")
    check_languages(options)
    if options.like and options.like.resolve() == options.output.resolve():
        raise PreparationError(f"--output {options.output} is the folder of --like; choose another")
    check_texts(options)


def check_languages(options: argparse.Namespace) -> None:
    """Raises a PreparationError unless these are codes of two languages, which Moses knows where it has to."""
    by_moses = not (options.pretokenised or options.like)
    for code in (options.source_lang, options.target_lang):
        if not re.fullmatch(r"[a-z]+(_[A-Za-z0-9]+)*", code):  # Moses would use the rules of English for FR
            raise PreparationError(
                f"{code!r} is not a language code; give one such as fr (own-data.sh: rename the file)"
            )
        if by_moses and "_" in code:
            language = code.partition("_")[0]
            remedy = language if len(language) == 2 else "the language's code of two letters, if it has one"
            raise PreparationError(f"Moses has no rules for {code} and would use those of English; give {remedy}")
        if by_moses and code in SHORTER:
            raise PreparationError(f"Moses knows {SHORTER[code]}, and has no rules for {code}; give {SHORTER[code]}")
    if options.source_lang == options.target_lang:
        raise PreparationError(f"source and target language are both {options.source_lang}; give two languages")


def check_texts(options: argparse.Namespace) -> None:
    """Raises a PreparationError if one of the texts would be replaced, or the two of a part are exchanged."""
    own = {(options.output / stage).resolve() for stage in ORDER}
    endings = [f".{options.target_lang}", f".{options.source_lang}"]
    for part in corpora.PARTS:
        texts = getattr(options, part) or []
        for text in texts:
            if own & {*text.resolve().parents}:
                message = f"{text} is a file of --output {options.output} and would be replaced; name a copy elsewhere"
                raise PreparationError(message)
        if [text.suffix for text in texts] == endings:
            given = f"--{part} {texts[0]} {texts[1]}"
            raise PreparationError(f"{given}: the source language is {options.source_lang}; exchange the two files")


def list_corpora(registry: Path) -> None:
    for name, corpus in sorted(corpora.read_registry(registry).items()):
        pairs = f"{', '.join(corpus['pairs'])} (either direction)"
        print(f"{name}: {corpus['title']}", pairs, corpus["attribution"], corpus["licence"], sep="\n  ")


def prepare(arguments: Sequence[str] | None) -> None:
    """Runs the command line; raises PreparationError and OSError."""
    options = parser().parse_args(arguments)
    if options.list:
        list_corpora(options.registry)
        return
    earlier = Earlier.read(options.like) if options.like else None
    if earlier:
        earlier.adopt(options)
    check(options)
    languages = (options.source_lang, options.target_lang)
    if options.corpus:
        source = corpora.find(options.corpus, languages, options.registry)
    else:
        files = {part: tuple(getattr(options, part)) for part in corpora.PARTS if getattr(options, part)}
        source = corpora.OwnFiles(files, languages)
    Preparation(
        source=source,
        languages=languages,
        output=options.output,
        cache=options.cache,
        mirror=options.mirror,
        held_out=options.held_out,
        max_pairs=options.max_pairs,
        max_length=options.max_length or source.max_length or MAX_LENGTH,
        max_ratio=options.max_ratio or source.max_ratio or MAX_RATIO,
        pretokenised=options.pretokenised,
        lowercase=options.lowercase,
        separate_bpe=options.separate_bpe,
        bpe_operations=options.bpe_operations or BPE_OPERATIONS,
        workers=options.workers,
        like=earlier,
        new_characters=options.new_characters,
    ).run()


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_status("prepare.py", lambda: prepare(arguments))


if __name__ == "__main__":
    sys.exit(main())
