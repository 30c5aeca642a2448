"""All named architectures: each family in each size."""

import re
from dataclasses import fields

from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY, register_model, register_model_architecture
from fairseq.models.transformer import base_architecture

from ..checkpoints.files import refuse_shared_ffn
from ..checkpoints.trusted import BOUNDED
from ..config import own_options
from ..errors import InputError, flag
from ..families import FAMILIES, SIZES, Family
from .model import TransformerModel


def size_options(layers: int, embed_dim: int, ffn_embed_dim: int, heads: int, dropout: float) -> dict:
    """The fairseq options for a row of SIZES."""
    both = {"layers": layers, "attention_heads": heads}
    sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in both.items()}
    # fairseq's base_architecture gives the decoder the encoder's widths.
    return {**sides, "encoder_embed_dim": embed_dim, "encoder_ffn_embed_dim": ffn_embed_dim, "dropout": dropout}


def set_defaults(args, options: dict) -> None:
    """Sets the options that `args` (a Namespace or hydra's DictConfig) does not have, or has as null."""
    for name, value in options.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)


def add_family(name: str, family: Family, model: type = TransformerModel) -> None:
    """Registers `name`_SIZE as fairseq's --arch for every size, with the options of `family`.

    Raises:
        InputError: for a name that fairseq knows, whose earlier model it would silently keep, and for an option of
            `model` whose value its TransformerConfig would lose, or which no checkpoint may have (`BOUNDED`)
    """
    names = (name, *(f"{name}_{size}" for size in SIZES))
    if taken := [known for known in names if known in MODEL_REGISTRY or known in ARCH_MODEL_REGISTRY]:
        remedy = "choose another name for the family, or start Python again to register it anew"
        raise InputError(f"{taken[0]}: there is a model of this name in this Python: {remedy}")
    lost = [flag(option) for option in own_options(model.config) if re.match("(encoder|decoder|quant_noise)_", option)]
    if lost:
        reason = "fairseq takes a name that begins so for its own option, and this one would keep its default"
        raise InputError(f"{', '.join(lost)}: {reason}: choose another name")
    bounded = [option for option in fields(model.config) if option.name.endswith(BOUNDED)]
    if texts := [flag(one.name) for one in bounded if one.type not in (bool, int, float, int | None, float | None)]:
        reason = "an option of a checkpoint has to be a number if its name ends so"
        raise InputError(f"{', '.join(texts)}: {reason}: choose another name")
    FAMILIES[name] = family
    register_model(name)(model)
    for size in SIZES:
        add_size(name, family, size, model)


def add_size(name: str, family: Family, size: str, model: type) -> None:
    options = {**size_options(*SIZES[size]), **family.options_of(size)}

    @register_model_architecture(name, f"{name}_{size}")
    def architecture(args) -> None:
        # In a checkpoint base_architecture has set defaults before; this one is no option that a user can give.
        if hasattr(args, "decoder_input_dim"):  # it may be older than --branch-residual
            set_defaults(args, {"branch_residual": "none"})
            refuse_shared_ffn(getattr(args, "branch_ffn", None))
        # fairseq calls this twice before it trains: the second time, it must not seem to be such a checkpoint.
        # All of ours are set: --model-overrides changes only what is in a checkpoint of fairseq-hydra-train.
        set_defaults(args, {name: getattr(model.config, name) for name in own_options(model.config)} | options)
        base_architecture(args)  # fairseq's defaults for the rest
        for name in ("embed_dim", "ffn_embed_dim"):
            set_defaults(args, {f"decoder_{name}": getattr(args, f"encoder_{name}")})
        set_defaults(args, {"decoder_output_dim": args.decoder_embed_dim})
        args.decoder_output_dim = int(args.decoder_output_dim)  # fairseq's parser reads a string


for name in list(FAMILIES):
    add_family(name, FAMILIES[name])
