"""The options of our models: fairseq's TransformerConfig and what we add to it."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Optional

from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from omegaconf import DictConfig

from .errors import InputError, flag


def option(default, help: str):
    """A field of a configuration, which fairseq makes an option of the command line."""
    return field(default=default, metadata={"help": help})


@dataclass
class VariantConfig(TransformerConfig):
    """The options of every family, added to fairseq's; a variant of your own subclasses it (user_dir/variant.md)."""

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
        "where to add relative positions: in self-attention of encoder and decoder, or in encoder–decoder attention "
        "as well (Ontañón et al. 2022, section 4.1)",
    )
    relative_distance: int = option(
        16, "k: distances are clipped to [-k, k], so a table has 2k+1 rows (Shaw et al. 2018, section 3.2)"
    )
    relative_tables: ChoiceEnum(["per_head", "shared"]) = option(
        "per_head", "one table per head of each layer, or one per layer (Shaw et al. 2018, section 4.1: base, big)"
    )
    absolute_positions: ChoiceEnum(["add", "omit"]) = option(
        "add",
        "add fairseq's position embeddings to the word embeddings, or omit them like "
        "--no-token-positional-embeddings; scale and dropout stay (Shaw et al. 2018 replace them)",
    )
    restricted_attention: ChoiceEnum(["none", "encoder", "decoder", "both"]) = option(
        "none",
        "where to restrict self-attention to --neighbourhood (Vaswani et al. 2017, section 4)",
    )
    neighbourhood: int = option(
        64, "r: a position sees itself and ⌊r/2⌋ positions on each side (Vaswani et al. 2017, section 4, Table 1)"
    )
    branched_attention: ChoiceEnum(["none", "encoder_decoder", "self", "both", "both_halves"]) = option(
        "none",
        "replace attention and FFN by weighted branches with an FFN each, in every encoder layer and, in decoder "
        "layers, in the encoder–decoder attention, the masked self-attention or both; the FFNs of an attention have "
        "width d_ff in total, in the decoder with both_halves half of it (Ahmed et al. 2017, eq. 5–7)",
    )
    branch_residual: ChoiceEnum(["per_branch", "shared", "none"]) = option(
        "per_branch",
        "input of FFN_i: its head and the block's input x (per_branch); all heads and x, as in the Transformer "
        "(shared); or its head alone (none: Ahmed et al. 2017, eq. 7 as printed)",
    )
    branches: Optional[int] = option(
        None, "M, which must divide the heads; default: each head is a branch (Ahmed et al. 2017, section 3)"
    )
    branch_weights: ChoiceEnum(["simplex", "softmax", "random"]) = option(
        "simplex",
        "keep κ and α on the simplex (--optimizer fused_adam does), or make them the softmax of free weights, or draw "
        "them in each forward pass of training and evaluate with 1/M (Ahmed et al. 2017, §§3 and 4.4: both worse)",
    )
    top_branches: Optional[int] = option(
        None, "use only this many branches, those with the largest α (Ahmed et al. 2017, section 4.5); default: all"
    )
    branch_weights_init: ChoiceEnum(["uniform", "random"]) = option(
        "uniform", "initialise κ and α with 1/M or at random (Ahmed et al. 2017, section 4.1, has no distribution)"
    )
    autocast: ChoiceEnum(["off", "bf16"]) = option(
        "off",
        "run matrix products in this precision, on CPU and GPU; parameters, their gradients and the "
        "optimizer stay float32 and need no loss scaling (fairseq's --bf16 is for TPUs)",
    )

    @classmethod
    def from_namespace(cls, args):
        cfg = super().from_namespace(args)
        if cfg.absolute_positions == "omit":  # fairseq's own flag cannot be reset from the command line
            cfg.no_token_positional_embeddings = True
        return cfg


def own_options(config: type[VariantConfig]) -> list[str]:
    """The names of the options of `config` that fairseq's TransformerConfig does not have."""
    return [option.name for option in fields(config) if option.name not in TransformerConfig.__dataclass_fields__]


# Options that select a part of a model, and those that have no effect without it.
PARTS = {
    "relative_positions": ("relative_distance", "relative_tables"),
    "restricted_attention": ("neighbourhood",),
    "branched_attention": ("branch_residual", "branches", "branch_weights", "top_branches", "branch_weights_init"),
}

# Options that name a file of vectors, which a model from a checkpoint does not read; and those of their length.
EMBEDDINGS = {f"{side}_embed_path": f"{side}_embed_dim" for side in ("encoder", "decoder")}

# Options of fairseq's Transformer that our models do not support, and the remedy. Every other option is implemented,
# or belongs to one of these and has no effect alone.
UNSUPPORTED = {
    "quant_noise_pq": "train without it, because our attention multiplies the projections' weights directly",
    "quant_noise_scalar": "train without it, because our attention multiplies the projections' weights directly",
    "adaptive_softmax_cutoff": "use a subword vocabulary, which the full softmax handles",
    "tie_adaptive_weights": "it belongs to --adaptive-softmax-cutoff, which is not supported",
    "tie_adaptive_proj": "it belongs to --adaptive-softmax-cutoff, which is not supported",
    "adaptive_input": "use a subword vocabulary (fairseq's Transformer ignores this option)",
    "char_inputs": "use a subword vocabulary (fairseq's Transformer ignores this option)",
    "merge_src_tgt_embed": "prepare the data with one dictionary for both languages and use --share-all-embeddings",
    "cross_self_attention": "use fairseq's own --arch transformer for it",
    "no_cross_attention": "use fairseq's own --arch transformer for it",
    "base_layers": "use fairseq's own --arch transformer for it",
    "encoder_xformers_att_config": "omit it, because our attention uses torch's scaled_dot_product_attention",
    "decoder_xformers_att_config": "omit it, because our attention uses torch's scaled_dot_product_attention",
    "export": "use nmt-translate or nmt-export-ctranslate2, because torch.jit.script cannot compile our attention",
    "encoder_layers_to_keep": "train with the number of layers that you want",
    "decoder_layers_to_keep": "train with the number of layers that you want",
}


# Options that are counts, and those that are probabilities. fairseq accepts any number: some fail within torch, others
# (no layers, a layerdrop of 1.5) silently train another model.
COUNTS = ["attention_key_dim", "attention_value_dim", "branches", "top_branches"]
COUNTS += ["max_source_positions", "max_target_positions", "neighbourhood", "decoder_output_dim"]
SIDE = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
COUNTS += [f"{side}_{name}" for side in ("encoder", "decoder") for name in SIDE]
PROBABILITIES = ["dropout", "attention_dropout", "activation_dropout", "relu_dropout"]
PROBABILITIES += ["encoder_layerdrop", "decoder_layerdrop"]


def refuse_options(cfg: VariantConfig) -> None:
    """Raises InputError, naming each option and its remedy, for what our models do not support or no model can have."""
    faults = [*unsupported(cfg), *impossible(cfg)]
    if faults:
        raise InputError("; ".join(faults))


def unsupported(cfg: VariantConfig) -> Iterator[str]:
    if cfg.branch_residual == "shared" and cfg.branched_attention in ("both", "both_halves"):
        given = f"--branched-attention {cfg.branched_attention}"
        yield f"{given} cannot be combined with --branch-residual shared: give self or encoder_decoder"
    if cfg.branch_weights == "random":  # evaluation uses 1/M for all branches
        for name, default in (("top_branches", None), ("branch_weights_init", "uniform")):
            if (value := getattr(cfg, name)) != default:
                reason = "cannot be combined with --branch-weights random, which evaluates with 1/M"
                yield f"{flag(name)} {value} {reason}: omit one of them"
    if cfg.no_token_positional_embeddings and (cfg.encoder.learned_pos or cfg.decoder.learned_pos):
        off, remedy = "--no-token-positional-embeddings", "omit either"
        if cfg.absolute_positions == "omit":
            off, remedy = "--absolute-positions omit", "add --absolute-positions add, or omit them"
        yield f"--encoder-learned-pos and --decoder-learned-pos have no effect with {off}: {remedy}"
    if cfg.relative_attention == "all" and cfg.relative_positions == "neither":
        yield "--relative-attention all needs relative positions: add --relative-positions keys_and_values"
    for name, remedy in UNSUPPORTED.items():
        if value := getattr(cfg, name):
            yield f"{flag(name)} {value} is not supported by this --arch: {remedy}"


def impossible(cfg: VariantConfig) -> Iterator[str]:
    for names, allowed, wanted in (
        (COUNTS, lambda number: number >= 1, "at least 1"),
        (["relative_distance"], lambda number: number >= 0, "at least 0"),
        (PROBABILITIES, lambda number: 0 <= number < 1, "a number from 0 to below 1"),
    ):
        for name in names:
            value = getattr(cfg, name)
            if value is not None and not allowed(value):
                yield f"{flag(name)} {value}: give {wanted}"
    for choice in fields(cfg):  # which the command line checks, but neither fairseq-hydra-train nor --model-overrides
        if isinstance(choice.type, type) and issubclass(choice.type, Enum):
            value, choices = str(getattr(cfg, choice.name)), [member.value for member in choice.type]
            if value not in choices:
                yield f"{flag(choice.name)} {value}: choose from {', '.join(choices)}"
    for name in ("encoder", "decoder"):
        width, heads = getattr(cfg, name).embed_dim, getattr(cfg, name).attention_heads
        if heads > 0 and width % heads:
            yield f"--{name}-embed-dim {width} is not divisible by --{name}-attention-heads {heads}: change one of them"
    if cfg.share_all_embeddings:
        for name in ("embed_dim", "embed_path"):
            first, second = getattr(cfg.encoder, name), getattr(cfg.decoder, name)
            if second and first != second:
                given = f"{flag(f'encoder_{name}')} {first} and {flag(f'decoder_{name}')} {second}"
                yield f"--share-all-embeddings needs the same on both sides, not {given}: change one of them"
    shared = cfg.share_all_embeddings or cfg.share_decoder_input_output_embed
    if shared and cfg.decoder.output_dim != cfg.decoder.embed_dim:
        given = f"--decoder-output-dim {cfg.decoder.output_dim}"
        yield f"{given} is not --decoder-embed-dim {cfg.decoder.embed_dim}, whose embeddings it shares: omit it"


def whole(cfg: DictConfig) -> DictConfig:
    """The configuration of which `cfg` is a group; omegaconf has no public name for it."""
    return cfg._get_root()


CHOICES = ("optimizer", "criterion", "lr_scheduler")


def training_options(cfg) -> dict:
    """The options of fairseq's command by name: all of them, or the configuration of which `cfg` is a group."""
    if not isinstance(cfg, DictConfig):
        return vars(cfg)
    root = whole(cfg)
    names = ["common", "distributed_training", "optimization", "dataset", "checkpoint", "ema"]
    names += ["criterion", "lr_scheduler", "common_eval"]
    groups = [group for name in names if isinstance(group := root.get(name), DictConfig)]  # else it has no dataclass
    options = {name: value for group in groups for name, value in group.items()}
    return options | {kind: choice_of(root, kind) for kind in CHOICES}


def choice_of(root: DictConfig, kind: str) -> str | None:
    """The name of the optimizer, criterion or scheduler, alone or in a group of its options.

    The group is a Namespace of all options where it has no dataclass, such as fairseq's sgd.
    """
    group = root.get(kind)
    if isinstance(group, argparse.Namespace):
        return getattr(group, kind)
    return group.get("_name") if isinstance(group, DictConfig) else group
