"""Scores translations, several runs side by side: sacreBLEU, chrF, and the tokenised BLEU of the papers.

    python -m user_dir.tools.score runs/*/generate.log --reference data/tatoeba.fr-en/raw/test.en
    python -m user_dir.tools.score translations.de --reference newstest2014.de

Files are fairseq-generate's output, or plain text with a hypothesis a line. The scores, all computed by sacrebleu:

sacreBLEU        of detokenised text, cased, mteval's 13a tokenisation inside: what to report
chrF2            of characters, detokenised text
tokenised BLEU   of Moses tokens with compounds split at hyphens, of hypothesis and reference, unsmoothed: what the papers
                 report for WMT14 (tensor2tensor's get_ende_bleu.sh, multi-bleu.perl)
BLEU of tokens   of H- against T- lines as they are, where fairseq did not detokenise: what fairseq-generate itself
                 prints, of the training data's tokens (lower-cased on IWSLT14)
"""

import argparse
import functools
import pathlib
import re

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric
from sacrebleu.tokenizers.tokenizer_base import BaseTokenizer
from sacremoses import MosesTokenizer

from .errors import exit_in_one_line
from .translations import BadInput, Run, language_of, read_run

TOKENS = "BLEU of tokens"


class CompoundSplitting(BaseTokenizer):
    """Moses tokens, and "rich-text format" as "rich ##AT##-##AT## text format"."""

    def __init__(self, language: str):
        self.language = language
        self.moses = MosesTokenizer(language)

    def signature(self) -> str:
        return f"moses-{self.language}-compounds"

    @functools.lru_cache(maxsize=2**16)  # the reference is tokenised for every run
    def __call__(self, line: str) -> str:
        # Of bytes, as Perl does it in get_ende_bleu.sh: a match takes a letter on each side, so that b-c stays in a-b-c,
        # but of a letter of two bytes only one.
        return re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", self.moses.tokenize(line, return_str=True).encode()).decode()


class CompoundSplitBLEU(BLEU):
    """BLEU as multi-bleu.perl computes it, over tokens of CompoundSplitting; takes detokenised text."""

    def __init__(self, language: str):
        super().__init__(tokenize="none", smooth_method="none", force=True)
        self.tokenizer = CompoundSplitting(language)
        self.tokenizer_signature = self.tokenizer.signature()


def token_bleu() -> BLEU:
    """BLEU as fairseq-generate and multi-bleu.perl compute it, over tokens as they are."""
    return BLEU(tokenize="none", smooth_method="none", force=True)


def metrics(runs: list[Run], language: str) -> dict[str, Metric]:
    """The scores by name that all of the runs allow."""
    found = {"sacreBLEU": BLEU(), "chrF2": CHRF(), "tokenised BLEU": CompoundSplitBLEU(language)}
    if all(run.hypothesis_tokens for run in runs):
        found[TOKENS] = token_bleu()
    return found


def texts(run: Run, name: str) -> tuple[list[str], list[str]]:
    """Hypotheses and references for the score called `name`."""
    return (run.hypothesis_tokens, run.reference_tokens) if name == TOKENS else (run.hypotheses, run.references)


def read_runs(paths: list[pathlib.Path], args: argparse.Namespace) -> tuple[list[Run], str]:
    """The runs and their language, by the options of `add_options`.

    Raises:
        BadInput: as read_run; if a file is given twice or their T- lines are of different test sets
    """
    language = language_of(args.reference, args.target_lang)
    for path in paths:
        if paths.count(path) > 1:
            raise BadInput(f"{path} is given twice")
    runs = [read_run(path, args.reference, language, {"yes": True, "no": False}.get(args.tokenised)) for path in paths]
    for run in runs:
        if run.references != runs[0].references:
            raise BadInput(f"{run.path} and {runs[0].path} have different references (T- lines): they must be of the same test set")
    return runs, language


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; numbers are the columns after the first."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def signatures(used: dict[str, Metric], args: argparse.Namespace) -> str:
    """What makes the scores repeatable, as a Markdown list; after the metrics have been used."""
    lines = [f"- {name}: `{'chrF2' if name == 'chrF2' else 'BLEU'}|{metric.get_signature()}`" for name, metric in used.items()]
    reference = args.reference or "the T- lines, which went through tokenisation: give --reference for scores to report"
    return "\n".join([*lines, f"- reference: {reference}"])


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reference", type=pathlib.Path, metavar="FILE", help="as published: detokenised, a line for each segment (default: the T- lines)")
    parser.add_argument("--target-lang", help="language of the hypotheses (default: the ending of the reference's name)")
    parser.add_argument(
        "--tokenised", choices=("auto", "yes", "no"), default="auto",
        help="whether hypotheses (and T- lines) are Moses tokens and are to be detokenised; auto: plain text is not, "
        "fairseq-generate's output is if it was made without --tokenizer (no: sentencepiece on untokenised text)",
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="score", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="FILE", help="fairseq-generate's output, or plain text")
    add_options(parser)
    args = parser.parse_args(arguments)
    with exit_in_one_line("score"):
        runs, language = read_runs(args.runs, args)
    used = metrics(runs, language)
    rows = []
    for run in runs:
        scores = []
        for name, metric in used.items():
            hypotheses, references = texts(run, name)
            scores.append(f"{metric.corpus_score(hypotheses, [references]).score:.2f}")
        rows.append([str(run.path), *scores])
    print(table(["run", *used], rows), signatures(used, args), sep="\n\n")


if __name__ == "__main__":
    main()
