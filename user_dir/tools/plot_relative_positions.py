"""Draws what a relative_transformer has learned about distances: one heat map for each table and side.

    python -m user_dir.tools.plot_relative_positions RUN/average.pt --output tables.png

A line of a map is a head (a layer, where its heads share a table), a column a distance j − i from query to key, clipped
at ±k. Drawn are |w^K|, |w^V| and the mean contribution of w^K to the score, E[x]·W^Q·w^K / √d_z (Shaw et al. 2018, eq. 4).
The mean input E[x] is read from the checkpoint and not from data: the bias of the LayerNorm before the attention, which
is the mean of its output if what it normalises has none; in a post-norm model's first layer the mean of all embeddings.
A decoder sees no key after the query: those distances stay blank.
"""

import argparse
import pathlib
import re

import torch
from torch import Tensor

from ..checkpoints import load
from .checkpoints import model_options
from .errors import ToolError, exit_in_one_line
from .pictures import new_figure, save

SIDES = ("encoder", "decoder")
KEYS, VALUES, SCORES = "norm of the key table, |w^K|", "norm of the value table, |w^V|", "mean contribution to the score"


class NoTables(ToolError):
    """A checkpoint without relative positions."""


def maps(state: dict) -> dict[tuple[str, str], list[Tensor]]:
    """(side, kind): for each layer a map [h, 2k+1], or [1, 2k+1] of norms if its heads share a table.

    Raises:
        NoTables: if the model has no relative positions
    """
    model, found = state["model"], {}
    for side in SIDES:
        numbers = sorted(int(m[1]) for name in model if (m := re.fullmatch(rf"{side}\.layers\.(\d+)\.self_attn\.q_proj\.weight", name)))
        for number in numbers:
            attention = f"{side}.layers.{number}.self_attn."
            for kind, name in ((KEYS, "relative_keys"), (VALUES, "relative_values")):
                if attention + name in model:
                    found.setdefault((side, kind), []).append(per_head(model[attention + name]).norm(dim=-1))
            if attention + "relative_keys" in model:
                found.setdefault((side, SCORES), []).append(mean_scores(state, side, number))
    if not found:
        raise NoTables("the checkpoint has no relative positions (no relative_keys and no relative_values in its self-attention)")
    return found


def per_head(table: Tensor) -> Tensor:
    """[2k+1, d_z] → [1, 2k+1, d_z]; a table of each head as it is."""
    return table.float().reshape(-1, *table.shape[-2:])


def mean_scores(state: dict, side: str, number: int) -> Tensor:
    """[h, 2k+1]: (E[x] W^Q + b^Q)·w^K / √d_z of a layer."""
    model, prefix = state["model"], f"{side}.layers.{number}.self_attn."
    table = per_head(model[prefix + "relative_keys"])
    mean = model[prefix + "q_proj.weight"].float() @ mean_input(state, side, number) + model[prefix + "q_proj.bias"].float()
    queries = mean.view(-1, 1, table.size(-1))  # [h, 1, d_z]
    return (queries * table).sum(dim=-1) * table.size(-1) ** -0.5


def mean_input(state: dict, side: str, number: int) -> Tensor:
    """E[x] [d] of a layer's self-attention, as the module's docstring says."""
    model, options = state["model"], model_options(state)
    if options[f"{side}_normalize_before"]:
        return model[f"{side}.layers.{number}.self_attn_layer_norm.bias"].float()
    if number:
        norms = ("final", "encoder_attn", "self_attn")  # the last that a layer has: a branched one has no FFN sublayer
        names = [f"{side}.layers.{number - 1}.{norm}_layer_norm.bias" for norm in norms]
        return next(model[name] for name in names if name in model).float()
    if options["layernorm_embedding"]:
        return model[f"{side}.layernorm_embedding.bias"].float()
    embeddings = model[f"{side}.embed_tokens.weight"].float()
    mean = embeddings.mean(dim=0) * (1 if options["no_scale_embedding"] else embeddings.size(1) ** 0.5)
    projection = model.get(f"{side}.project_in_dim.weight")  # of a decoder with another input size
    return mean if projection is None else projection.float() @ mean


def draw(found: dict[tuple[str, str], list[Tensor]], title: str):
    """The figure: sides below each other, kinds side by side."""
    kinds = [kind for kind in (KEYS, VALUES, SCORES) if any(kind == k for _, k in found)]
    figure = new_figure(5 * len(kinds), 9, title)
    axes = figure.subplots(len(SIDES), len(kinds), squeeze=False)
    for line, side in zip(axes, SIDES):
        for axis, kind in zip(line, kinds):
            draw_map(figure, axis, found[side, kind], side, kind)
    return figure


def draw_map(figure, axis, layers: list[Tensor], side: str, kind: str) -> None:
    values = torch.cat(layers)  # [lines, 2k+1]
    k = values.size(1) // 2
    if side == "decoder":
        values[:, k + 1 :] = float("nan")
    heads = [len(layer) for layer in layers]
    bound = values.nan_to_num().abs().max().item() or 1.0
    colours = {"cmap": "RdBu_r", "vmin": -bound, "vmax": bound} if kind == SCORES else {"cmap": "viridis"}
    image = axis.imshow(values.numpy(), aspect="auto", interpolation="none", extent=(-k - 0.5, k + 0.5, len(values), 0), **colours)
    axis.set_facecolor("0.9")
    starts = [sum(heads[:i]) for i in range(len(heads))]
    for start in starts[1:]:
        axis.axhline(start, color="white", linewidth=0.8)
    axis.set_yticks([start + count / 2 for start, count in zip(starts, heads)], [str(i + 1) for i in range(len(heads))])
    axis.tick_params(axis="y", length=0)
    axis.set(title=f"{side}: {kind}", xlabel="distance from query to key", ylabel="layer" + (", a line for each head" if max(heads) > 1 else ""))
    figure.colorbar(image, ax=axis)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="plot_relative_positions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the picture; its ending says the format (png, pdf, svg)")
    args = parser.parse_args(arguments)
    with exit_in_one_line("plot_relative_positions"):
        save(draw(maps(load(args.checkpoint)), str(args.checkpoint)), args.output)
    print(args.output)


if __name__ == "__main__":
    main()
