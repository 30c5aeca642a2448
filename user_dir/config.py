"""The options of our models: fairseq's TransformerConfig and what we add to it."""

import operator
import re
from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig

from .errors import InputError


def option(default, help: str):
    """A field of a configuration, which fairseq makes an option of the command line."""
    return field(default=default, metadata={"help": help})


@dataclass
class VariantConfig(TransformerConfig):
    attention_key_dim: Optional[int] = option(
        None, "d_k: size of a head's queries and keys; default: d_model / heads (Vaswani et al. 2017, Table 3, rows B)"
    )
    attention_value_dim: Optional[int] = option(
        None, "d_v: size of a head's values; default: d_model / heads (Vaswani et al. 2017, section 3.2.2)"
    )
    relative_positions: ChoiceEnum(["keys_and_values", "keys", "values", "scalars", "neither"]) = option(
        "neither",
        "add a vector for each distance to keys, to values or to both (Shaw et al. 2018, eq. 3 and 4, Table 3), or a "
        "scalar to the scores (Raffel et al. 2020, section 2.1)",
    )
    relative_attention: ChoiceEnum(["self", "all"]) = option(
        "self",
        "the attentions with relative positions: self-attention in encoder and decoder, or encoder–decoder attention "
        "as well (Ontañón et al. 2022, section 4.1)",
    )
    relative_distance: int = option(
        16, "k: distances are clipped to −k … k, so that a table has 2k+1 rows (Shaw et al. 2018, section 3.2)"
    )
    relative_tables: ChoiceEnum(["per_head", "shared"]) = option(
        "per_head", "a table for each head of each layer, or for each layer (Shaw et al. 2018, section 4.1: base, big)"
    )
    absolute_positions: ChoiceEnum(["add", "omit"]) = option(
        "add",
        "add fairseq's position embeddings to those of the words, or omit them like "
        "--no-token-positional-embeddings; scale and dropout stay (Shaw et al. 2018 replace them)",
    )
    restricted_attention: ChoiceEnum(["none", "encoder", "decoder", "both"]) = option(
        "none", "whose self-attention is restricted to --neighbourhood (Vaswani et al. 2017, section 4)"
    )
    neighbourhood: int = option(
        64, "r: a position sees itself and ⌊r/2⌋ positions on each side (Vaswani et al. 2017, section 4, Table 1)"
    )
    branched_attention: ChoiceEnum(["none", "encoder_decoder", "self", "both", "both_halves"]) = option(
        "none",
        "weighted branches, an FFN in each, instead of attention and FFN: in every encoder layer, and in decoder "
        "layers for the encoder–decoder attention, the masked self-attention or both, each with FFNs of width d_ff "
        "together or with half of that (Ahmed et al. 2017, eq. 5–7)",
    )
    branch_residual: ChoiceEnum(["per_branch", "shared", "none"]) = option(
        "per_branch",
        "what FFN_i of a branch gets: its head and x, which the attention is given (per_branch); the heads of all "
        "and x, as in the Transformer (shared); or its head alone (none: Ahmed et al. 2017, eq. 7, to the letter)",
    )
    branches: Optional[int] = option(
        None, "M, a divisor of the heads; default: each head is a branch (Ahmed et al. 2017, section 3)"
    )
    branch_ffn: ChoiceEnum(["per_branch", "shared"]) = option(
        "per_branch",
        "an FFN of width d_ff / M for each branch, or one of width d_ff for all (Ahmed et al. 2017, eq. 7: no width)",
    )
    branch_weights: ChoiceEnum(["simplex", "softmax", "random"]) = option(
        "simplex",
        "κ and α are kept on the simplex by --optimizer fused_adam, or are the softmax of free weights, or are drawn "
        "in every step of the training and 1/M afterwards (Ahmed et al. 2017, sections 3 and 4.4, found both worse)",
    )
    top_branches: Optional[int] = option(
        None, "only so many branches count, those with the largest α (Ahmed et al. 2017, section 4.5); default: all"
    )
    branch_weights_init: ChoiceEnum(["uniform", "random"]) = option(
        "uniform", "κ and α are at first 1/M, or random (Ahmed et al. 2017, section 4.1, has no distribution)"
    )
    autocast: ChoiceEnum(["off", "bf16"]) = option(
        "off",
        "run matrix products in this precision, on CPU and GPU; parameters, their gradients and the "
        "optimizer stay float32 and need no loss scaling (fairseq's --bf16 is for TPUs)",
    )


class UnsupportedOption(InputError):
    """An option of fairseq's Transformer that our models do not carry."""


# option: what to do instead. Every other option is implemented, so none is silently ignored.
UNSUPPORTED = {
    "quant_noise_pq": "our attention multiplies the projections' weights directly; train without it",
    "quant_noise_scalar": "our attention multiplies the projections' weights directly; train without it",
    "adaptive_softmax_cutoff": "use a subword vocabulary, which the full softmax handles",
    "tie_adaptive_weights": "it belongs to --adaptive-softmax-cutoff, which is not supported",
    "tie_adaptive_proj": "it belongs to --adaptive-softmax-cutoff, which is not supported",
    "adaptive_input": "use a subword vocabulary; fairseq's Transformer ignores this option",
    "char_inputs": "use a subword vocabulary; fairseq's Transformer ignores this option",
    "merge_src_tgt_embed": "prepare the data with a joint vocabulary and use --share-all-embeddings",
    "cross_self_attention": "use fairseq's own --arch transformer for it",
    "no_cross_attention": "use fairseq's own --arch transformer for it",
    "base_layers": "use fairseq's own --arch transformer for it",
    "encoder_xformers_att_config": "our attention runs on torch's scaled_dot_product_attention",
    "decoder_xformers_att_config": "our attention runs on torch's scaled_dot_product_attention",
    "export": "torch.jit.script cannot compile our attention; use nmt-translate or nmt-export-ctranslate2",
    "encoder_layers_to_keep": "train with the number of layers that you want",
    "decoder_layers_to_keep": "train with the number of layers that you want",
}


# Options that are counts, and those that are probabilities. fairseq takes any number: some end in an assertion of
# torch, others (no layers, a dropout of 1.5) train another model without a word.
COUNTS = ["attention_key_dim", "attention_value_dim", "branches", "top_branches"]
COUNTS += ["max_source_positions", "max_target_positions"]
SIDE = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
COUNTS += [f"{side}.{name}" for side in ("encoder", "decoder") for name in SIDE]
PROBABILITIES = ["dropout", "attention_dropout", "activation_dropout", "encoder.layerdrop", "decoder.layerdrop"]


def refuse_impossible(cfg: VariantConfig) -> None:
    """Raises InputError, naming the option and what to do, for sizes that no Transformer can have."""
    for names, allowed, wanted in (
        (COUNTS, lambda number: number >= 1, "a number from 1 on"),
        (PROBABILITIES, lambda number: 0 <= number < 1, "a number from 0 to below 1"),
    ):
        for name in names:
            value = operator.attrgetter(name)(cfg)
            if value is not None and not allowed(value):
                raise InputError(f"--{re.sub('[._]', '-', name)} {value}: give {wanted}")
    for name in ("encoder", "decoder"):
        side = getattr(cfg, name)
        if side.embed_dim % side.attention_heads:
            raise InputError(
                f"--{name}-embed-dim {side.embed_dim} cannot be dealt out to --{name}-attention-heads "
                f"{side.attention_heads}: choose a number of heads that divides the width"
            )


def refuse_unsupported(cfg: VariantConfig) -> None:
    """Raises UnsupportedOption, naming the option and what to do, if `cfg` asks for what our models do not carry."""
    if cfg.branched_attention != "none" and cfg.branch_residual == "shared":
        for name, only in (("branched_attention", "encoder_decoder"), ("branch_ffn", "per_branch")):
            if getattr(cfg, name) != only:
                raise UnsupportedOption(
                    f"--branch-residual shared has the sublayers of the Transformer, so --{name.replace('_', '-')} is "
                    f"{only}, not {getattr(cfg, name)}: leave that option out, or take --branch-residual per_branch."
                )
    if cfg.relative_attention == "all" and cfg.relative_positions == "neither":
        raise UnsupportedOption(
            "--relative-attention all has no effect without relative positions: add "
            "--relative-positions keys_and_values, or choose a family that has them"
        )
    for name, remedy in UNSUPPORTED.items():
        if value := getattr(cfg, name):
            raise UnsupportedOption(f"--{name.replace('_', '-')} {value} is not supported by this --arch: {remedy}.")
