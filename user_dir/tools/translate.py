"""Translates text: one line in, one line out, in order.

    nmt-translate RUN "J'ouvris la boîte, mais elle était vide."    # RUN/average.pt
    nmt-translate RUN --input text.fr --output text.en
    zcat text.fr.gz | nmt-translate RUN | gzip > text.en.gz
    nmt-translate RUN/ctranslate2 --input text.fr    # as nmt-export-ctranslate2 wrote it
    nmt-translate RUN        # asks for a line at a time; Ctrl-D ends it

Text is prepared as data-prep prepared the training data, by the manifest.json beside the data-bin folder of the
training, and the translation is joined and detokenised. Only a newline ends a line; an empty line stays empty. The
sentences of a line are translated one by one, and their translations are joined. Subwords that the dictionary lacks
are <unk>. A file or a pipe is read 2,000 lines at a time, which are sorted by length for the translation.

If RUN/ctranslate2 was exported from this very checkpoint, unquantised, CTranslate2 translates, and the answer comes in
a second; otherwise torch and fairseq do, which take several seconds to start.
"""

import argparse
import itertools
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator

from tqdm import tqdm

from ..errors import InputError
from ..files import write
from ..search.search_settings import FORMS
from ..serving.text_translator import MAX_TOKENS, TextTranslator
from .shared.command import add_checkpoint, add_data, add_search, checkpoint, exit_in_one_line, new_parser, positive
from .shared.engine import opened

CHUNK = 2000  # lines that are sorted by length and translated together; then they are written


def decoded(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """The lines of `stream` without their newline, the first without a byte order mark.

    Raises:
        InputError: at the first line that is not UTF-8
    """
    for number, line in enumerate(stream, 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            place = f"{name}, line {number}: not UTF-8 at byte {error.start + 1}"
            code = "utf-16" if line.startswith((b"\xff\xfe", b"\xfe\xff")) else "latin1"
            remedy = f"convert it first, for example with iconv -f {code} -t utf-8"
            if line.startswith(b"\x1f\x8b"):
                remedy = "decompress it first, with gunzip"
            raise InputError(f"{place}; {remedy}") from None
        yield (text.removeprefix("\ufeff") if number == 1 else text).removesuffix("\n")


def asked(language: str) -> Iterator[bytes]:
    """Lines that a person types."""
    print(f"Type a line of text ({language}); Ctrl-D ends.", file=sys.stderr)
    yield from iter(lambda: print("> ", end="", file=sys.stderr, flush=True) or sys.stdin.buffer.readline(), b"")
    print(file=sys.stderr)


def source(args: argparse.Namespace, language: str) -> tuple[Iterable[str], int | None, int]:
    """The lines to translate, how many they are where that is known, and how many are translated together."""
    chunk = args.buffer_size or CHUNK
    if args.text:
        return decoded(map(os.fsencode, args.text), "the text"), len(args.text), chunk
    if args.input:
        total = None
        if args.input.is_file():  # and no pipe, which can be read once
            with open(args.input, "rb") as stream:
                total = sum(1 for _ in decoded(stream, str(args.input)))  # refuses a line before any is translated
        return decoded(open(args.input, "rb"), str(args.input)), total, chunk
    if sys.stdin is None:
        raise InputError("the standard input is closed: give a text or --input")
    if sys.stdin.isatty():
        return decoded(asked(language), "input"), None, 1
    return decoded(sys.stdin.buffer, "standard input"), None, chunk


def translated(
    translator: TextTranslator, lines: Iterable[str], chunk: int, bar: tqdm, args: argparse.Namespace
) -> Iterator[bytes]:
    """The texts to write for the lines, `chunk` of them at a time."""
    search = {"beam": args.beam, "lenpen": args.lenpen, "max_tokens": args.max_tokens, "batch_size": args.batch_size}
    if args.lenpen_form:  # CTranslate2 has fairseq's only
        search["lenpen_form"] = args.lenpen_form
    lines, done = iter(lines), 0
    while texts := [*itertools.islice(lines, chunk)]:
        rows = translator.rows(texts, args.split_sentences)
        for number, row in enumerate(rows, done + 1):
            if (length := max(len(sentence.split()) for sentence in row.split("\n"))) > translator.longest:
                long = f"line {number} has a sentence of {length} subwords and the model takes {translator.longest}"
                if args.too_long == "refuse":
                    remedy = "shorten it, or omit --too-long refuse to have it translated in pieces"
                    raise InputError(f"{long}: {remedy}")
                tqdm.write(f"nmt-translate: {long}: translated in pieces", file=sys.stderr)
        found = translator.search(rows, args.nbest or 1, advance=bar.update, **search)
        if args.nbest:
            numbered = enumerate(found, done + 1)
            written = [f"{number}\t{score:.4f}\t{text}\n" for number, row in numbered for text, score in row]
        else:
            written = [f"{row[0].text}\n" for row in found]
        yield "".join(written).encode()
        done += len(texts)
        bar.update(done - bar.n)  # it counted pieces, and no empty lines


def save(parts: Iterable[bytes], path: pathlib.Path) -> None:
    with open(path, "wb") as out:
        out.writelines(parts)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = new_parser("nmt-translate", __doc__)
    add_checkpoint(parser, ", or an export for CTranslate2")
    parser.add_argument("text", nargs="*", help="the text to translate (default: --input, or the standard input)")
    parser.add_argument("--input", type=pathlib.Path, metavar="FILE", help="translate the lines of this file")
    help = "write to this file, in place of an earlier one, when all is translated (default: standard output)"
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE", help=help)
    add_data(parser)
    help = "the text is in subwords already, like the training data; the output is tokens. Required for data that "
    help += "data-prep did not prepare; not for those of prepare.py --pretokenised"
    parser.add_argument("--pretokenised", "--already-split", action="store_true", help=help)  # the latter up to 0.1
    help = "another model; the probabilities of all models are averaged; may be repeated"
    parser.add_argument("--ensemble", type=checkpoint, action="append", default=[], metavar="CHECKPOINT", help=help)
    add_search(parser)
    help = "length^A, or ((5 + length)/6)^A (default: that of search.json, else fairseq)"
    parser.add_argument("--lenpen-form", choices=FORMS, help=help)
    help = "write the N best, up to the beam, each after its line number and score (log2 p / penalty), tab-separated"
    parser.add_argument("--nbest", type=positive, metavar="N", help=help)
    help = "subwords in a batch (default: %(default)s)"
    parser.add_argument("--max-tokens", type=positive, default=MAX_TOKENS, metavar="N", help=help)
    help = "sentences in a batch (default: as many as --max-tokens allows)"
    parser.add_argument("--batch-size", type=positive, metavar="N", help=help)
    help = f"lines that are read before they are translated; 1 answers each line of a pipe at once (default: {CHUNK:,})"
    parser.add_argument("--buffer-size", type=positive, metavar="N", help=help)
    help = "a sentence too long for the model is translated in pieces, or ends the command (default: %(default)s)"
    parser.add_argument("--too-long", choices=("split", "refuse"), default="split", help=help)
    help = "translate the sentences of a line one by one and join the translations, or the line as a whole (default: "
    help += "one by one, if the text is not in tokens)"
    parser.add_argument("--split-sentences", action=argparse.BooleanOptionalAction, help=help)
    help = "the library that computes (default: CTranslate2 on a CPU, if ctranslate2/ beside the checkpoint was "
    help += "exported from it, and none of --data, --ensemble, --lenpen-form, --nbest and --autocast is given)"
    parser.add_argument("--engine", choices=("ctranslate2", "torch"), help=help)
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:1, … (default: a GPU where there is one)")
    help = "matrix products in bfloat16, or not "
    help += "(default: as in the training; off if this machine gains nothing by bfloat16)"
    parser.add_argument("--autocast", choices=("off", "bf16"), help=help)
    args = parser.parse_intermixed_args(arguments)  # text may follow options
    if args.text and args.input:
        parser.error("give either text or --input")
    return args


@exit_in_one_line("nmt-translate")
def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    if sys.stdout is None and not args.output:
        raise InputError("the standard output is closed: give --output")
    translator = opened(args)
    lines, total, chunk = source(args, translator.source_lang)
    # Shown to people, once it takes longer than two seconds; not among translations that they read on the same screen.
    hidden = not args.output and sys.stdout.isatty()
    with tqdm(total=total, unit=" lines", delay=2, leave=False, disable=hidden or None) as bar:
        parts = translated(translator, lines, chunk, bar, args)
        if args.output:
            write(args.output, lambda partial: save(parts, partial), [args.checkpoint, *args.ensemble])
        else:
            for part in parts:
                sys.stdout.buffer.write(part)
                sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
