"""Checkpoints from elsewhere whose options fairseq would run as Python.

torch reads weights only, and runs nothing. But a checkpoint also says what model, task and criterion are to be built of
it, and fairseq has some (convolutional models, wav2vec, ctc, …) that call eval() on what stands in their options. Here
those are built that are known not to, or that do not come from fairseq: of a variant that --user-dir has imported.
"""

import ast

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.models.transformer import TransformerModel
from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.translation import TranslationTask

from .errors import InputError

KNOWN = (TransformerModel, TranslationTask, CrossEntropyCriterion, LabelSmoothedCrossEntropyCriterion)
REGISTRIES = {
    "model": (ARCH_MODEL_REGISTRY, MODEL_REGISTRY),  # fairseq asks them in this order
    "task": (TASK_REGISTRY,),
    "criterion": (CRITERION_REGISTRY,),
}
# What fairseq's TransformerModel evaluates. Ours refuses these options (config.py).
EVALUATED = ("adaptive_softmax_cutoff", "encoder_xformers_att_config", "decoder_xformers_att_config")


def refuse_evaluated(what: str, group: str, options) -> None:
    """Raises InputError, naming `what`, if `options` of a checkpoint's model, task or criterion (`group`) could run."""
    options = dict(options) if hasattr(options, "keys") else vars(options)
    name = options.get("_name") or options.get("arch")
    kind = next((registry[name] for registry in REGISTRIES[group] if name in registry), None)
    if kind is None:
        raise InputError(f"{what} asks for the {group} {name}, which nothing here registers: import what does")
    if kind.__module__.startswith("fairseq.") and kind not in KNOWN:
        reason = "which may run what stands in its options: use fairseq's own commands if you trust it"
        raise InputError(f"{what} asks for the {group} {name} of fairseq, {reason}")
    for option in EVALUATED:
        try:
            ast.literal_eval(str(options.get(option)))
        except (ValueError, SyntaxError):
            raise InputError(f"{what} has {option} {options[option]}, which fairseq would run: do not use it") from None
