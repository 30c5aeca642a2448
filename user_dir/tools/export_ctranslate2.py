"""Writes a checkpoint as a model of CTranslate2 (https://opennmt.net/CTranslate2), which translates faster on CPUs.

    nmt-export-ctranslate2 RUN --output RUN/int8 --quantization int8

The checkpoint is of vaswani_transformer, or of relative_transformer where the heads of a layer share a table for the
keys and one for the values (--relative-tables shared, as in Shaw et al.'s big models): CTranslate2 computes no others.
The exported model reads and writes subwords, such as data-prep's in bpe/. nmt-translate accepts the folder instead of a
checkpoint, and plain text; it uses RUN/ctranslate2 by itself if that is not quantised and was exported from the
checkpoint that it would load.
"""

import contextlib
import importlib.util
import pathlib
import sys

import torch

from ..attention.multihead import MultiheadAttention
from ..checkpoints.files import refuse_not_finite
from ..config import PARTS, own_options
from ..errors import InputError, flag
from ..files import folder_beside, refuse_missing_folder
from ..kernels.dropout import Dropout
from ..kernels.products import Linear
from ..relative.attention import RelativeMultiheadAttention
from ..search.search_settings import kept_settings
from ..serving.exported_translator import FACTS, fingerprint, write_facts
from ..serving.models import data_of, load_models, longest_source
from ..serving.respelling import characters_of
from ..transformer.layers import TransformerDecoderLayer, TransformerEncoderLayer
from ..transformer.model import TransformerDecoder, TransformerEncoder
from .shared.command import add_checkpoint, add_data, add_output, exit_in_one_line, new_parser

QUANTIZATIONS = ("int8", "int8_float32", "int16", "float16", "bfloat16", "float32")
# Our options that may have any value: CTranslate2 computes it, or it has no effect alone.
COMPUTED = {"relative_positions", "absolute_positions", "autocast"}.union(*PARTS.values())
CLASSES = {TransformerEncoder, TransformerDecoder, TransformerEncoderLayer, TransformerDecoderLayer}
CLASSES |= {MultiheadAttention, RelativeMultiheadAttention, Dropout, Linear}


class NotComputed(InputError):
    """CTranslate2 does not compute the model."""


def refuse(path: pathlib.Path, model: torch.nn.Module) -> None:
    """Raises NotComputed, with the reason, for a model that CTranslate2 does not compute."""
    from ctranslate2.converters import fairseq as stock

    cfg = model.cfg
    if not hasattr(cfg, "relative_positions"):
        raise NotComputed(f"{path} is not of this project's families: convert it first (nmt-convert-checkpoint)")
    options = [name for name in own_options(type(cfg)) if name not in COMPUTED]  # a variant may have more
    faults = [f"{flag(name)} {value}" for name in options if (value := getattr(cfg, name)) != getattr(type(cfg), name)]
    relative, absolute = cfg.relative_positions != "neither", not cfg.no_token_positional_embeddings
    shared = (cfg.relative_positions, cfg.relative_tables) == ("keys_and_values", "shared")
    others = {
        "relative positions other than keys and values in shared tables": relative and not shared,
        "both relative positions and position embeddings": relative and absolute,
        "no position embeddings": not relative and not absolute,
        f"--activation-fn {cfg.activation_fn}": cfg.activation_fn not in stock._SUPPORTED_ACTIVATIONS,
        "a --decoder-output-dim that is not --decoder-embed-dim": cfg.decoder.output_dim != cfg.decoder.embed_dim,
    }
    faults += [fault for fault, found in others.items() if found]
    if not faults:  # a variant may have no option that tells
        classes = {type(module) for side in (model.encoder, model.decoder) for module in side.modules()} - CLASSES
        faults += sorted(one.__name__ for one in classes if one.__module__.split(".")[0] not in ("torch", "fairseq"))
    if faults:
        reason = "which CTranslate2 does not compute: translate with nmt-translate"
        raise NotComputed(f"{path} has {' and '.join(faults)}, {reason}")


def specification(path: pathlib.Path, data: pathlib.Path):
    """The checkpoint's model as CTranslate2's TransformerSpec, with the dictionaries of `data`; the model; its task.

    Raises:
        NotComputed: as refuse
        InputError: if a parameter is not finite
    """
    from ctranslate2.converters import fairseq as stock
    from ctranslate2.specs import TransformerDecoderSpec, TransformerEncoderSpec, TransformerSpec

    (model,), task, _ = load_models([path], data, autocast="off")
    cfg = model.cfg
    refuse(path, model)
    for name, value in model.named_parameters():  # CTranslate2 would translate with any
        refuse_not_finite(path, name, value, "use another model")
    relative = cfg.relative_positions != "neither"
    sides = []
    for ours, sizes, kind, set_layer in (
        (model.encoder, cfg.encoder, TransformerEncoderSpec, stock.set_transformer_encoder_layer),
        (model.decoder, cfg.decoder, TransformerDecoderSpec, stock.set_transformer_decoder_layer),
    ):
        side = kind(
            len(ours.layers),
            sizes.attention_heads,
            relative_position=relative,
            pre_norm=sizes.normalize_before,
            no_final_norm=ours.layer_norm is None,
            activation=stock._SUPPORTED_ACTIVATIONS[cfg.activation_fn],
            layernorm_embedding=cfg.layernorm_embedding,
        )
        embeddings = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        stock.set_embeddings(embeddings, ours.embed_tokens)
        side.scale_embeddings = ours.embed_scale
        if not relative:
            stock.set_position_encodings(side.position_encodings, ours.embed_positions)
        for theirs, layer in zip(side.layer, ours.layers, strict=True):
            set_layer(theirs, layer)
            if relative:
                theirs.self_attention.relative_position_keys = layer.self_attn.relative_keys.numpy()
                theirs.self_attention.relative_position_values = layer.self_attn.relative_values.numpy()
        for name in ("layer_norm", "layernorm_embedding"):
            if getattr(ours, name) is not None:
                stock.set_layer_norm(getattr(side, name), getattr(ours, name))
        sides.append(side)
    spec = TransformerSpec(*sides)
    stock.set_linear(spec.decoder.projection, model.decoder.output_projection)
    spec.register_source_vocabulary(task.source_dictionary.symbols)
    spec.register_target_vocabulary(task.target_dictionary.symbols)
    spec.config.decoder_start_token = spec.config.eos_token
    spec.config.add_source_eos = True
    return spec, model, task


def export(path: pathlib.Path, data: pathlib.Path, output: pathlib.Path, quantization: str | None) -> None:
    """Writes the folder `output`, whole or not at all, in place of an earlier export.

    Raises:
        NotComputed: if CTranslate2 does not compute the model
        InputError: if `output` exists and is not an export, or a parameter is not finite
    """
    from ctranslate2.converters.converter import Converter

    if output.exists() and not (output / FACTS).exists():
        raise InputError(f"{output} exists: remove it, or name another folder")
    refuse_missing_folder(output)
    output = output.resolve()  # so that a link to another disk stays one
    exported = fingerprint(path)  # before the file is read, because a training may replace it meanwhile
    found, model, task = specification(path, data)
    kind = type("LoadedModel", (Converter,), {"_load": lambda self: found})
    with folder_beside(output) as folder:
        kind().convert(f"{folder}/model", quantization=quantization)
        kept = kept_settings(path.parent)
        if kept.get("lenpen_form") == "vaswani":  # CTranslate2 knows fairseq's only
            kept = {name: value for name, value in kept.items() if name not in ("lenpen", "lenpen_form")}
        facts = {"source_lang": task.cfg.source_lang, "target_lang": task.cfg.target_lang, "search": kept}
        # As in fairseq's search: </s> takes the last position.
        facts |= {"longest": longest_source(task, [model]), "longest_output": model.max_decoder_positions() - 1}
        facts |= {"characters": characters_of(task.source_dictionary.symbols)}
        facts |= {"checkpoint": exported, "quantization": quantization}
        write_facts(pathlib.Path(folder, "model"), data, facts)
        if output.exists():
            output.rename(pathlib.Path(folder, "earlier"))
        pathlib.Path(folder, "model").rename(output)


@torch.no_grad()
@exit_in_one_line("nmt-export-ctranslate2")
def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("nmt-export-ctranslate2", __doc__)
    add_checkpoint(parser)
    add_data(parser)
    help = "type of the weights (default: the checkpoint's, with which nmt-translate takes the export by itself)"
    parser.add_argument("--quantization", choices=QUANTIZATIONS, help=help)
    add_output(parser, "the folder of the export", "FOLDER")
    help = "write nothing, without an error, where CTranslate2 is not installed or does not compute the model or the "
    parser.add_argument("--if-possible", action="store_true", help=help + "run's length penalty")
    args = parser.parse_args(arguments)
    form = kept_settings(args.checkpoint.parent).get("lenpen_form", "fairseq")  # CTranslate2 has fairseq's
    if args.if_possible and (form != "fairseq" or importlib.util.find_spec("ctranslate2") is None):
        return
    with contextlib.suppress(NotComputed) if args.if_possible else contextlib.nullcontext():
        export(args.checkpoint, args.data or data_of([args.checkpoint]), args.output, args.quantization)
        print(f"{args.output}: {args.checkpoint} for CTranslate2")
        if form != "fairseq":
            reason = f"CTranslate2 does not compute the run's --lenpen-form {form}"
            print(f"nmt-export-ctranslate2: {reason}: the export has --lenpen 1 of fairseq's", file=sys.stderr)


if __name__ == "__main__":
    main()
