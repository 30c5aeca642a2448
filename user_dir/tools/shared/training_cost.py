"""Floating-point operations of a training: those of the model, counted by torch, for what it was shown.

Vaswani et al. 2017 estimate theirs (Table 2) otherwise, as hours x GPUs x what a GPU sustains: what they paid for.
"""

import itertools
import math
import pathlib

import torch
from fairseq.modules import LayerDropModuleList
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ...errors import InputError
from ...serving.models import data_of, load_models
from ...training.last_checkpoint import LAST
from .records import AVERAGE

# The product of [B, N, d] and [B, d, M]: ours have it in place, and torch counts it only out of place.
IN_PLACE = {torch.ops.aten.baddbmm_: lambda added, x, y, **_: 2 * math.prod(x) * y[-1]}

TOKENS = 1000  # of the target, counted together: branches make κ_i W^O_i W1_i once for a batch, if it is large enough


def operations(model: nn.Module, source: int, target: int) -> float:
    """Operations of the matrix products, forward and backward, for each pair of so many subwords in a batch of them."""
    pairs = -(-TOKENS // target)
    source_tokens, target_tokens = (torch.full((pairs, length), 4) for length in (source, target))
    # torch knows no operations of its fused attention on CPUs; the other one has the same products.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=IN_PLACE) as counter:
        logits, _ = model(source_tokens, torch.full((pairs,), source), target_tokens)
        logits.sum().backward()
    return counter.get_total_flops() / pairs


def lengths(task) -> tuple[float, float]:
    """Mean numbers of source and target subwords of the pairs trained on, </s> included."""
    task.load_dataset(task.cfg.train_subset, combine=True)  # as fairseq trains: train, train1, …
    dataset = task.dataset(task.cfg.train_subset)
    return dataset.src_sizes.mean(), dataset.tgt_sizes.mean()


def shown(points: dict[int, dict], epochs: dict[int, dict]) -> tuple[float, float]:
    """Target subwords and seconds of the updates in "train_inner" of a log, with its "train" (training_log.read_log).

    Updates after the last interval, which only an epoch's line has, count as the others' mean. A log may begin late
    (--continue-once); its first interval is then as long as the second. fairseq writes whole seconds, so they are taken
    from the epochs where these are fewer than the intervals and have all of their updates.
    """
    numbers = sorted(points)
    begun = max(0, 2 * numbers[0] - numbers[1]) if len(numbers) > 1 else 0
    intervals = itertools.pairwise([begun, *numbers])
    tokens = sum(points[updates]["wpb"] * (updates - before) for before, updates in intervals)
    whole = begun == 0 and max(epochs, default=0) >= numbers[-1]
    timed = epochs if whole and len(epochs) < len(points) else points
    last = max(epochs) if whole else numbers[-1]
    return tokens * last / numbers[-1], sum(values["train_wall"] for values in timed.values()) * last / max(timed)


def cost(log: pathlib.Path, points: dict[int, dict], epochs: dict[int, dict]) -> tuple[float, float, float]:
    """Target subwords, floating-point operations and seconds of the training with this log (see `shown`).

    The model is that of a checkpoint beside the log.

    Raises:
        InputError: if there is none, its layers were dropped at random, or the log does not say how many subwords were
            trained on
    """
    checkpoint = next(filter(pathlib.Path.is_file, map(log.with_name, (AVERAGE, LAST))), None)
    if checkpoint is None:
        raise InputError(f"there is no {AVERAGE} or {LAST} beside {log} to count operations of: omit --cost")
    if not all({"wpb", "train_wall"} <= values.keys() for values in points.values()) or not points:
        raise InputError(f"{log} has no lines with wpb and train_wall: name a log with those of --log-interval")
    (model,), task, _ = load_models([checkpoint], data_of([checkpoint], ""), autocast="off")
    if any(isinstance(module, LayerDropModuleList) for module in model.modules()):
        raise InputError(f"{checkpoint} was trained with other layers in each update (layerdrop): omit --cost")
    source, target = lengths(task)
    tokens, seconds = shown(points, epochs)
    return tokens, operations(model, round(source), round(target)) / round(target) * tokens, seconds
