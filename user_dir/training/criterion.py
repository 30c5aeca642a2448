"""--criterion fused_label_smoothed_cross_entropy: output projection and loss in one, in chunks of tokens.

For a token with logits z [V], correct word y and smoothing ε, fairseq's label_smoothed_cross_entropy is, with
e = ε / (V − 1),

    L = (1 − ε − e) (lse − z_y) + e Σ_v (lse − z_v) = lse − (1 − ε − e) z_y − e Σ_v z_v,   lse = log Σ_v exp z_v
    ∂L/∂z_v = softmax(z)_v − e − (1 − ε − e) [v = y]

because the weights of lse add up to 1. fairseq computes log-probabilities for all tokens, and about ten tensors of that
size for the loss and its gradient. Here logits exist for one chunk of tokens at a time, not for padding, and the
gradient is computed from them at once. Σ_v z_v = x Σ_v W_v, with the features x of the token, needs no pass over the
logits, and neither does the constant e of the gradient.
"""

import functools
import inspect

import torch
from fairseq import utils
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.models import FairseqDecoder
from fairseq.models.transformer import TransformerDecoderBase, TransformerModelBase
from torch import Tensor, nn

from ..kernels.products import Linear

# The most tokens and logits in a chunk on CPUs: more logits leave the caches between two passes over them, and fewer
# tokens make W and its gradient, which are read for each chunk, cost too much (tests/benchmarks/loss.py).
ROWS, LOGITS = 384, 2**24
SLICE = 2**20  # numbers of W's gradient to which a bfloat16 product is added at a time: a larger one leaves the caches
LOGITS_ON_GPU = 2**26  # each chunk is about 30 kernels: with 37,000 words 4,096 tokens take 3, not 11
PRODUCTS = (nn.Linear.forward, Linear.forward)  # a subclass of nn.Linear may compute more, such as LoRA


@register_criterion("fused_label_smoothed_cross_entropy", dataclass=LabelSmoothedCrossEntropyCriterionConfig)
class FusedLabelSmoothedCrossEntropy(LabelSmoothedCrossEntropyCriterion):
    """fairseq's label_smoothed_cross_entropy: the same options, loss, gradients (up to rounding) and log.

    fairseq's own implementation computes the rest: losses that are not summed, ignored prefixes, float16 and --amp
    (where the loss is scaled before its gradient is computed), models with another output layer than fairseq's plain
    projection, other probabilities or another call than its Transformer's, and pytorch_ddp with
    --find-unused-parameters, which considers a projection outside the model's own call unused.
    """

    def forward(self, model, sample, reduce=True):
        projection = plain_projection(model)
        finds_unused = getattr(model, "find_unused_parameters", False)  # of torch's DistributedDataParallel
        if projection is None or not reduce or self.ignore_prefix_size > 0 or finds_unused:
            return super().forward(model, sample, reduce)
        if projection.weight.dtype == torch.float16 or torch.is_autocast_enabled("cuda"):
            return super().forward(model, sample, reduce)
        target = sample["target"].view(-1)
        rows = target.ne(self.padding_idx).nonzero()[:, 0]  # waits for a GPU, which has nothing to do yet
        features, _ = model(**sample["net_input"], features_only=True)
        features, target = features.flatten(0, 1).index_select(0, rows), target.index_select(0, rows)
        cast = torch.bfloat16 if getattr(model.decoder.cfg, "autocast", "off") == "bf16" else features.dtype
        derive = torch.is_grad_enabled()  # the Function cannot see it
        loss, nll_loss, correct = ProjectedLoss.apply(
            features, projection.weight, target, self.eps, cast, derive, self.report_accuracy
        )
        sentences, tokens = sample["target"].size(0), sample["ntokens"]
        log = {"loss": loss.data, "nll_loss": nll_loss, "ntokens": tokens, "nsentences": sentences}
        log["sample_size"] = sentences if self.sentence_avg else tokens
        if self.report_accuracy:
            log |= {"n_correct": utils.item(correct), "total": len(rows)}
        return loss, log["sample_size"], log


def plain_projection(model: nn.Module) -> nn.Linear | None:
    """The output layer of `model` if it, the probabilities and the model's call are those of fairseq's Transformer."""
    decoder = getattr(model, "decoder", None)
    projection, layer = (getattr(decoder, name, None) for name in ("output_projection", "output_layer"))
    plain = getattr(type(projection), "forward", None) in PRODUCTS and projection.bias is None
    plain = plain and getattr(layer, "__func__", None) is TransformerDecoderBase.output_layer
    plain = plain and type(decoder).get_normalized_probs is FairseqDecoder.get_normalized_probs
    plain = plain and inspect.unwrap(type(decoder).forward) is TransformerDecoderBase.forward
    while isinstance(getattr(model, "module", None), nn.Module):  # it is wrapped for several processes
        model = model.module
    return projection if plain and has_fairseqs_methods(type(model)) else None


@functools.cache  # because it takes longer than all other checks of an update
def has_fairseqs_methods(kind: type[nn.Module]) -> bool:
    softmax = getattr(kind, "get_normalized_probs", None) is TransformerModelBase.get_normalized_probs
    return softmax and "features_only" in inspect.signature(kind.forward).parameters  # transformer_align's has none


class ProjectedLoss(torch.autograd.Function):
    """The loss summed over tokens, from features [N, d], weight [V, d] and target [N], and its gradient.

    smoothing: ε; cast: the type of the products
    derive, accuracy: whether to compute the gradient, and to count
    Returns the loss and, without derivative, the negative log-likelihood and the number of tokens whose correct word
    is the most probable one (the first of equal ones), 0 if they are not counted.
    """

    @staticmethod
    def forward(
        ctx, features: Tensor, weight: Tensor, target: Tensor, smoothing: float, cast, derive: bool, accuracy: bool
    ):
        tokens, vocabulary = len(target), len(weight)
        e = smoothing / (vocabulary - 1)
        right = 1 - smoothing - e
        wide = torch.promote_types(cast, torch.float32)
        x, w = features.to(cast), weight.to(cast)
        sum_w, sum_x = weight.sum(0, dtype=wide), x.sum(0, dtype=wide)  # torch would widen w in a copy, to add it up
        grad_x = torch.empty_like(features) if derive and ctx.needs_input_grad[0] else None
        grad_w = None
        if derive and ctx.needs_input_grad[1]:
            # The chunks are added up in float32, even where the parameters are half-precision numbers.
            grad_w = (-e * sum_x).expand_as(weight).to(torch.promote_types(weight.dtype, wide), copy=True)
        loss, nll_loss, correct = (x.new_zeros((), dtype=wide) for _ in range(3))
        on_cpu = x.device.type == "cpu"
        size = max(1, min(ROWS, LOGITS // vocabulary) if on_cpu else LOGITS_ON_GPU // vocabulary)
        words = SLICE // weight.size(1) if on_cpu else vocabulary
        # New memory for each chunk would cost a tenth of the time, and more in bfloat16.
        buffer = x.new_empty(min(size, tokens), vocabulary)
        wide_buffer = buffer if cast == wide else buffer.new_empty(buffer.shape, dtype=wide)
        for start in range(0, tokens, size):
            rows = slice(start, start + size)
            product = torch.mm(x[rows], w.T, out=buffer[: tokens - start])  # [chunk, V]
            logits = product if cast == wide else wide_buffer[: tokens - start].copy_(product)
            y = target[rows, None]
            logit_y = logits.gather(1, y)  # [chunk, 1]
            highest = logits.amax(1, keepdim=True)  # max(1), which finds the word, too, takes seven times as long
            if accuracy:
                correct += (logits.argmax(1) == target[rows]).sum()
            torch.softmax(logits, dim=1, out=logits)
            lse = highest - logits.amax(1, keepdim=True).log()  # the largest probability is at least 1/V
            nll_loss += (lse - logit_y).sum()
            loss += (lse - right * logit_y).sum() - e * (x[rows].to(wide) @ sum_w).sum()
            if not derive:
                continue
            logits.scatter_add_(1, y, torch.full_like(logit_y, -right))
            gradient = product.copy_(logits)  # [chunk, V]; nothing is copied where they are the same
            if grad_x is not None:
                grad_x[rows] = (gradient @ w).to(wide) - e * sum_w
            if grad_w is not None:
                if cast == grad_w.dtype:
                    grad_w.addmm_(gradient.T, x[rows])
                else:
                    for part, own in zip(grad_w.split(words), gradient.split(words, dim=1), strict=True):
                        part += own.T @ x[rows]
        ctx.save_for_backward(grad_x, grad_w if grad_w is None else grad_w.to(weight.dtype))
        ctx.mark_non_differentiable(nll_loss, correct)
        return loss, nll_loss, correct

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor, *_):
        gradients = ctx.saved_tensors
        if grad.device.type != "cpu" or grad != 1:
            gradients = [x if x is None else x * grad for x in gradients]
        return *gradients, None, None, None, None, None
