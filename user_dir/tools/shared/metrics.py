"""The scores, all computed by sacrebleu: which there are, on which texts, and how they are written down."""

import functools
import pathlib
import re

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric
from sacremoses import MosesTokenizer

from ...preparation import language_of
from .translations import Run

TOKENS = "BLEU of tokens"
# For languages without spaces, by their codes of two and three letters.
TOKENISERS = dict.fromkeys("zh zho cmn yue".split(), "zh")
TOKENISERS |= dict.fromkeys("ja jpn th tha km khm lo lao my mya bo bod dz dzo".split(), "char")


class CompoundSplitBLEU(BLEU):
    """BLEU as multi-bleu.perl computes it, of detokenised text.

    It is over Moses tokens, with "rich-text format" as "rich ##AT##-##AT## text format".
    """

    def __init__(self, language: str):
        super().__init__(tokenize="none", smooth_method="none", force=True)
        moses = MosesTokenizer(language)

        @functools.lru_cache(maxsize=2**16)  # the reference is tokenised for every run
        def tokenised(line: str) -> str:
            # It replaces bytes, as Perl does in get_ende_bleu.sh: a match takes one on each side, so that b-c stays in
            # a-b-c, unless b has two bytes.
            tokens = moses.tokenize(line, return_str=True).encode()
            return re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", tokens).decode()

        self.tokenizer, self.tokenizer_signature = tokenised, f"moses-{language}-compounds"


def token_bleu() -> BLEU:
    """BLEU as fairseq-generate and multi-bleu.perl compute it, over tokens as they are."""
    return BLEU(tokenize="none", smooth_method="none", force=True)


def bleu(language: str, **options) -> BLEU:
    """sacreBLEU of detokenised text in `language`."""
    return BLEU(tokenize=TOKENISERS.get(language_of(language), "13a"), **options)


def metrics(runs: list[Run], language: str) -> dict[str, Metric]:
    """The scores by name that all of the runs allow."""
    found = {"sacreBLEU": bleu(language), "chrF2": CHRF()}
    if found["sacreBLEU"].tokenizer_signature == "13a":  # Moses finds no words in other languages
        found["tokenised BLEU"] = CompoundSplitBLEU(language)
    # With other dictionaries or tokens the T- lines differ, also where one --reference is given.
    if all(run.hypothesis_tokens and run.reference_tokens == runs[0].reference_tokens for run in runs):
        found[TOKENS] = token_bleu()
    return found


def texts(run: Run, name: str) -> tuple[list[str], list[str]]:
    """Hypotheses and references for the score called `name`."""
    return (run.hypothesis_tokens, run.reference_tokens) if name == TOKENS else (run.hypotheses, run.references)


def signature(name: str, metric: Metric) -> str:
    """The settings that make a score repeatable; after the metric has been used."""
    return f"{'chrF2' if name == 'chrF2' else 'BLEU'}|{metric.get_signature()}"


def signatures(used: dict[str, Metric], reference: pathlib.Path | None) -> str:
    """The signatures and the reference, as a Markdown list; after the metrics have been used."""
    lines = [f"- {name}: `{signature(name, metric)}`" for name, metric in used.items()]
    source = reference or "the T- lines, which went through tokenisation: give --reference for scores to report"
    return "\n".join([*lines, f"- reference: {source}"])
