"""Checks how a training evaluates its checkpoints: --eval-bleu, and the metric that chooses the best one."""

import dataclasses
import json
import re
from collections.abc import Iterator

from fairseq.data import Dictionary
from fairseq.data.data_utils import post_process
from fairseq.data.encoders import TOKENIZER_REGISTRY
from fairseq.dataclass.configs import GenerationConfig

from ..errors import flag
from ..preparation import CONTINUED

MARKED = re.compile(f".{CONTINUED}$|^▁")  # subwords of subword-nmt and sentencepiece
UNALIGNED = ("cross_entropy", "label_smoothed_cross_entropy", "fused_label_smoothed_cross_entropy")
RISES = {"loss": False, "nll_loss": False, "ppl": False, "accuracy": True, "bleu": True}  # as a model improves


def evaluation_faults(options, task_cfg, dictionary: Dictionary) -> Iterator[str]:
    """Yields the faults in the choice of the best checkpoint and in --eval-bleu; `dictionary` is of the target.

    fairseq would fail in the first validation, before it has saved anything, or keep the worst checkpoint.
    """
    metric, highest = options.best_checkpoint_metric, options.maximize_best_checkpoint_metric
    if metric == "bleu" and not task_cfg.eval_bleu:
        yield "--best-checkpoint-metric bleu needs --eval-bleu: add it"
    if metric == "accuracy" and not getattr(options, "report_accuracy", True):
        yield "--best-checkpoint-metric accuracy needs --report-accuracy: add it"
    plain = options.criterion == "cross_entropy"  # logs nll_loss only where that is not the loss
    if plain and (metric == "accuracy" or metric == "nll_loss" and not options.sentence_avg):
        yield f"--best-checkpoint-metric {metric}: --criterion cross_entropy has loss and ppl only: choose one of them"
    if metric not in RISES and (options.criterion in UNALIGNED or metric.lower() in (*RISES, "sacrebleu")):
        yield f"--best-checkpoint-metric {metric}: choose from {', '.join(RISES)}"
    if highest != RISES.get(metric, highest):
        kept, remedy = ("highest", "omit") if highest else ("lowest", "add")
        yield f"--best-checkpoint-metric {metric} would keep the {kept}: {remedy} --maximize-best-checkpoint-metric"
    if options.combine_valid_subsets and options.valid_subset != "valid":
        yield f"--valid-subset {options.valid_subset}: --combine-val reads valid, valid1, …: omit one of them"
    for unit in ("interval", "interval_updates"):
        every, saved = (getattr(options, f"{name}_{unit}") for name in ("validate", "save"))
        if options.patience > 0 and not options.no_save and every > 0 and (saved < 1 or every % saved):
            reason = f"--patience would count models that are not saved: add {flag(f'save_{unit}')} {every}"
            yield f"{flag(f'validate_{unit}')} {every}: {reason}"
    if task_cfg.eval_bleu:
        yield from bleu_faults(task_cfg, dictionary)


def bleu_faults(task_cfg, dictionary: Dictionary) -> Iterator[str]:
    marked, removed = [*filter(MARKED.search, dictionary.symbols)], task_cfg.eval_bleu_remove_bpe
    try:
        if all(MARKED.search(post_process(word, removed)) for word in marked or [""]):
            yield "--eval-bleu would score subwords: add --eval-bleu-remove-bpe (with sentencepiece, for its ▁)"
    except NotImplementedError:  # for `true` in a configuration of hydra's
        yield f"--eval-bleu-remove-bpe {removed}: give '@@ ' or sentencepiece"
    if task_cfg.eval_bleu_detok not in TOKENIZER_REGISTRY:
        yield f"--eval-bleu-detok {task_cfg.eval_bleu_detok}: choose from {', '.join(TOKENIZER_REGISTRY)}"
    of_searches = {field.name for field in dataclasses.fields(GenerationConfig)}
    for name, known in (("eval_bleu_args", of_searches), ("eval_bleu_detok_args", None)):  # None: the detokeniser's
        try:
            given = json.loads(text := getattr(task_cfg, name))
        except (TypeError, ValueError):  # null in a configuration of hydra's
            given = None
        if not isinstance(given, dict):
            yield f"{flag(name)} {text}: give a JSON object, such as '{{\"beam\": 4}}'"
        elif known and (unknown := given.keys() - known):
            wrong = f"{flag(name)}: the search has no option {', '.join(sorted(unknown))}"
            yield f"{wrong}: correct the name, or give an option of its own (--lenpen-form, --eval-bleu-remove-bpe)"
