"""Turns a checkpoint of fairseq's own Transformer into one of vaswani_transformer, and the other way round.

    nmt-convert-checkpoint RUN --to transformer --output fairseq.pt
    nmt-convert-checkpoint wmt14.en-fr.pt --to vaswani_transformer --output ours.pt

Parameters have the same names and meaning in both. The files differ in the names of architecture, task, criterion and
optimizer. fairseq-generate translates with the converted file as with the original; `transformer` needs no --user-dir.
To train further, give the --optimizer and --criterion of the new family. fairseq's public checkpoints can be read, too,
including old ones with all options in one list.
"""

import argparse
import pathlib
import re
from collections.abc import Mapping

from fairseq.checkpoint_utils import load_checkpoint_to_cpu
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_NAME_REGISTRY
from omegaconf import DictConfig, OmegaConf, open_dict

from .. import registration  # noqa: F401  (before anything is loaded)
from ..checkpoints.files import reading, save
from ..checkpoints.trusted import refuse_untrusted
from ..config import PARTS, VariantConfig, own_options, refuse_options
from ..errors import InputError, flag
from ..files import refuse_output, write
from .shared.command import add_checkpoint, add_output, exit_in_one_line, new_parser

STOCK, OURS = "transformer", "vaswani_transformer"
ARCHITECTURES = {STOCK: STOCK, OURS: f"{OURS}_base"}  # a checkpoint's sizes stand beside it
# Each group's names, fairseq's own first: of the option, and of the class in the optimizer's history.
NAMES = {
    "task": [("translation", "checked_translation"), ("translation", "fast_translation")],
    "criterion": [
        ("label_smoothed_cross_entropy", "fused_label_smoothed_cross_entropy"),
        ("LabelSmoothedCrossEntropyCriterion", "FusedLabelSmoothedCrossEntropy"),
    ],
    "optimizer": [("adam", "fused_adam"), ("FairseqAdam", "FusedAdam")],
}
# Options of ours that do not change what a model computes, beside those of a part that it does not have.
WITHOUT_EFFECT = {"autocast"}.union(*PARTS.values())


def renamed(name: str, group: str, to: str) -> str:
    """The equivalent of `name` in the family `to`; others' names stay."""
    for fairseqs, ours in NAMES[group]:
        if name in (fairseqs, ours):
            return fairseqs if to == STOCK else ours
    return name


def convert(path: pathlib.Path, to: str) -> dict:
    """The checkpoint `path` as one of the family `to`.

    Raises:
        InputError: if it is none, or of a model that the other family does not compute
    """
    with reading(path):
        state = load_checkpoint_to_cpu(str(path))
        cfg = state["cfg"]
        options = cfg.model if OmegaConf.is_config(cfg.model) else vars(cfg.model)
        architecture = options.get("arch") or options["_name"]
        sizes = [tensor.numel() for tensor in state["model"].values()]
        state["extra_state"].get("metrics", {}).pop("valid", None)  # arrays of --eval-bleu, which torch alone refuses
    if found := re.search(r"\$\{[^}]*[:$][^'\"]*", str(OmegaConf.to_container(cfg, resolve=False))):
        # such as ${oc.env:HOME}, or ${oc.${a}:HOME}: the file that is written would have this machine's
        raise InputError(f"{path} has the option {found[0]}, which would be looked up on this machine: do not use it")
    family = ARCH_MODEL_NAME_REGISTRY.get(architecture, architecture)
    if family == to or family not in ARCHITECTURES:
        reason = "it is one already" if family == to else f"only {STOCK} and {OURS} can be converted"
        raise InputError(f"{path} is of --arch {architecture} and cannot become one of {to}: {reason}")
    refuse_untrusted(path, cfg, sizes)
    if to == OURS:
        with open_dict(cfg):  # an older file lacks newer options, such as --decoder-output-dim
            ARCH_CONFIG_REGISTRY[architecture](cfg.model)
            for name in own_options(VariantConfig):  # --autocast overrides only what is there
                options.setdefault(name, getattr(VariantConfig, name))
        refuse_options(VariantConfig.from_namespace(cfg.model))
    else:
        refuse_parts(path, options)
    with open_dict(cfg):
        rename_groups(cfg, to)
        if "common" in cfg:
            cfg.common.user_dir = None
    state["args"] = None
    state["cfg"] = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    for name, group in state["cfg"].items():
        if isinstance(group, argparse.Namespace):  # also those of --optimizer sgd and others; torch loads none either
            state["cfg"][name] = vars(group)
    history = state["optimizer_history"][-1]
    for group in ("criterion", "optimizer"):
        history[f"{group}_name"] = renamed(history[f"{group}_name"], group, to)
    adam = state.get("last_optimizer_state")  # missing with --no-save-optimizer-state
    if adam and cfg.optimizer._name in NAMES["optimizer"][0]:  # the history may name fp16's wrapper
        convert_adam(adam, to)
    return state


def refuse_parts(path: pathlib.Path, options: Mapping) -> None:
    """Raises InputError if `options` of a model of ours give it a part that fairseq's Transformer lacks."""
    for name in VariantConfig.__annotations__:
        plain = getattr(VariantConfig, name)
        if name not in WITHOUT_EFFECT and options.get(name, plain) != plain:
            reason = f"{path} has {flag(name)} {options[name]}, which fairseq's {STOCK} lacks"
            raise InputError(f"{reason}: translate with nmt-translate instead")


def rename_groups(cfg: DictConfig, to: str) -> None:
    """Gives model, task, criterion and optimizer the names that they have in the family `to`."""
    for name in ("arch", "_name"):
        if getattr(cfg.model, name, None):
            setattr(cfg.model, name, ARCHITECTURES[to])
    for group in NAMES:
        if cfg.get(group) is not None:
            cfg[group]._name = renamed(cfg[group]._name, group, to)
            if not OmegaConf.is_config(cfg.model):  # fairseq-train keeps all options there, too
                setattr(cfg.model, group, cfg[group]._name)


def convert_adam(state: dict, to: str) -> None:
    """The moments stay; torch's fused Adam is asked for in a group's options, and counts updates in a tensor."""
    for group in state["param_groups"]:
        group["fused"] = to == OURS
        for moments in state["state"].values():
            moments.setdefault("step", group.get("step"))  # apex's Adam, which fairseq prefers, counts them there
            if to == STOCK:
                moments["step"] = int(moments["step"])


@exit_in_one_line("nmt-convert-checkpoint")
def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("nmt-convert-checkpoint", __doc__)
    add_checkpoint(parser)
    parser.add_argument("--to", choices=ARCHITECTURES, required=True, help="the family to convert it to")
    add_output(parser)
    args = parser.parse_args(arguments)
    refuse_output(args.output, [args.checkpoint])
    state = convert(args.checkpoint, args.to)
    write(args.output, lambda partial: save(state, partial), [args.checkpoint])
    print(f"{args.output}: {args.checkpoint} as --arch {ARCHITECTURES[args.to]}")


if __name__ == "__main__":
    main()
