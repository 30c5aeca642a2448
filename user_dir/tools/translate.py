"""Translates text: one line in, one line out, in order.

    python -m user_dir.tools.translate RUN/average.pt "J'ouvris la boîte, mais elle était vide."
    python -m user_dir.tools.translate RUN/average.pt --input text.fr --output text.en
    zcat text.fr.gz | python -m user_dir.tools.translate RUN/average.pt | gzip > text.en.gz
    python -m user_dir.tools.translate RUN/average.pt        # asks for a line at a time; Ctrl-D ends it

Text is prepared as data-prep prepared the training data, by the manifest.json beside the data-bin folder of the training, and the
translation is joined and detokenised. A line ends with a newline and with nothing else; an empty line stays empty. What is
in no subword of the training is <unk>. Of a file or a pipe 2,000 lines are read at a time, and translated sorted by length.
"""

import argparse
import itertools
import pathlib
import sys
from collections.abc import Iterable, Iterator

from tqdm import tqdm

from ..checkpoints import load
from ..translator import Translator, torch_device
from .checkpoints import model_options
from .errors import ToolError, exit_in_one_line
from .files import write
from .precision import faster

CHUNK = 2000  # lines that are sorted by length and translated together; then they are written


def decoded(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """The lines of `stream` without their newline, the first without a byte order mark.

    Raises:
        ToolError: at the first line that is not UTF-8
    """
    for number, line in enumerate(stream, 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ToolError(f"{name}, line {number}: not UTF-8 at byte {error.start + 1}; convert it first, for example with iconv -t utf-8") from None
        yield (text.removeprefix("\ufeff") if number == 1 else text).removesuffix("\n")


def asked(language: str) -> Iterator[bytes]:
    """Lines that a person types."""
    print(f"Type a line of text ({language}); Ctrl-D ends.", file=sys.stderr)
    for line in iter(lambda: print("> ", end="", file=sys.stderr, flush=True) or sys.stdin.buffer.readline(), b""):
        yield line
    print(file=sys.stderr)


def translated(translator: Translator, lines: Iterable[str], chunk: int, bar: tqdm, args: argparse.Namespace) -> Iterator[bytes]:
    """What to write for the lines, `chunk` of them at a time."""
    options = {"beam": args.beam, "lenpen": args.lenpen, "max_tokens": args.max_tokens, "batch_size": args.batch_size}
    lines, done = iter(lines), 0
    while texts := [*itertools.islice(lines, chunk)]:
        rows = [translator.encode(text) for text in texts]
        for number, row in enumerate(rows, done + 1):
            if (pieces := len(translator.pieces(row))) > 1:
                long = f"line {number} has {len(row.split())} subwords and the model takes {translator.longest}"
                if args.too_long == "refuse":
                    raise ToolError(f"{long}: shorten it, or leave --too-long refuse out to have it translated in pieces")
                tqdm.write(f"translate: {long}: translated in {pieces} pieces", file=sys.stderr)
        found = translator.search(rows, args.nbest or 1, advance=bar.update, **options)
        if args.nbest:
            written = [f"{number}\t{score:.4f}\t{text}\n" for number, row in enumerate(found, done + 1) for text, score in row]
        else:
            written = [f"{row[0].text}\n" for row in found]
        yield "".join(written).encode()
        done += len(texts)
        bar.update(done - bar.n)  # it counted pieces, and no empty lines


def save(parts: Iterable[bytes], path: pathlib.Path) -> None:
    with open(path, "wb") as out:
        out.writelines(parts)


def precision(checkpoints: list[pathlib.Path], device: str | None) -> str | None:
    """--autocast where nobody chose: that of the training (None), but "off" where bfloat16 gains nothing."""
    trained = {model_options(load(path, mmap=True)).get("autocast", "off") for path in checkpoints}
    return "off" if "bf16" in trained and faster(torch_device(device).type) == "off" else None


def positive(value: str) -> int:
    if (number := int(value)) < 1:
        raise ValueError
    return number


positive.__name__ = "number, at least 1,"  # for argparse's message


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="translate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("text", nargs="*", help="what to translate (default: --input, or the standard input)")
    parser.add_argument("--input", type=pathlib.Path, metavar="FILE", help="translate the lines of this file")
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE", help="write to this file, which is there when all is done (default: standard output)")
    parser.add_argument("--data", type=pathlib.Path, metavar="FOLDER", help="the data-bin folder (default: that of the training)")
    parser.add_argument(
        "--already-split", action="store_true",
        help="take text as it stands, tokenised and in subwords as the training data; write tokens. The one way for data that data-prep did not prepare",
    )  # fmt: skip
    parser.add_argument(
        "--ensemble", type=pathlib.Path, action="append", default=[], metavar="CHECKPOINT", help="a further model to take the mean with; may be repeated"
    )
    parser.add_argument("--beam", type=positive, default=4, metavar="N", help="beam size (default: %(default)s)")
    parser.add_argument(
        "--lenpen", type=float, default=0.6, metavar="A",
        help="fairseq's length penalty: scores are divided by length^A, where Vaswani et al. 2017 divide by ((5 + length)/6)^A (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--nbest", type=positive, metavar="N", help="write the N best after the number of their line and their score (log2 p / length^A), separated by tabs"
    )
    parser.add_argument("--max-tokens", type=positive, default=6000, metavar="N", help="subwords in a batch (default: %(default)s)")
    parser.add_argument("--batch-size", type=positive, metavar="N", help="lines in a batch (default: as many as --max-tokens allows)")
    parser.add_argument(
        "--too-long", choices=("split", "refuse"), default="split",
        help="a line too long for the model is translated in pieces, or ends the command (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--device", help="cpu, cuda, cuda:1, … (default: a GPU where there is one)")
    parser.add_argument(
        "--autocast", choices=("off", "bf16"),
        help="matrix products in bfloat16, or not (default: as in the training; off if this machine gains nothing by bfloat16)",
    )  # fmt: skip
    args = parser.parse_intermixed_args(arguments)  # text may follow options
    if args.text and args.input:
        parser.error("give either text or --input")
    if (args.nbest or 1) > args.beam:
        parser.error(f"--nbest {args.nbest}: a beam of {args.beam} finds no more than that; give a larger --beam")
    return args


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    with exit_in_one_line("translate"):
        checkpoints = [args.checkpoint, *args.ensemble]
        autocast = args.autocast or precision(checkpoints, args.device)
        translator = Translator(*checkpoints, data=args.data, already_split=args.already_split, autocast=autocast, device=args.device)
        chunk, total = CHUNK, None
        if args.text:
            lines, total = args.text, len(args.text)
        elif args.input:
            if args.input.is_file():  # and no pipe, which can be read once
                with open(args.input, "rb") as stream:
                    total = sum(1 for _ in stream)
            lines = decoded(open(args.input, "rb"), str(args.input))
        elif sys.stdin.isatty():
            chunk, lines = 1, decoded(asked(translator.task.cfg.source_lang), "input")
        else:
            lines = decoded(sys.stdin.buffer, "standard input")
        # Shown to people, once it takes longer than two seconds; not among translations that they read on the same screen.
        hidden = sys.stdout.isatty() and not args.output
        with tqdm(total=total, unit=" lines", delay=2, leave=False, disable=hidden or None) as bar:
            parts = translated(translator, lines, chunk, bar, args)
            if args.output:
                write(args.output, lambda partial: save(parts, partial))
            else:
                for part in parts:
                    sys.stdout.buffer.write(part)
                    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
