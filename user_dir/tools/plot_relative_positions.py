"""Draws what self-attention has learned about distances: one heat map for each table and side.

    nmt-plot-relative-positions RUN --output tables.png

A row of a map is a head, a column a distance j − i from query to key, clipped at ±k. Maps show |w^K|, |w^V| and the
mean contribution of w^K to the score, (E[x] W^Q + b^Q)·w^K / √d_z (Shaw et al. 2018, eq. 4), or the scalars of
--relative-positions scalars. Where the heads of a layer share a table, norms and scalars have one row per layer. The
mean input E[x] is read from the checkpoint and not from data: the bias of the LayerNorm before the attention, which is
the mean of its output if its input has mean 0; in a post-norm model's first layer the mean of all embeddings. A decoder
sees no key after the query: those distances stay blank. Tables of encoder–decoder attention are not drawn; those of
restricted attention keep their initial values where distances exceed its neighbourhood.
"""

import itertools
import re
from collections import defaultdict

import torch
from torch import Tensor

from ..checkpoints.files import load, saved_options
from ..errors import InputError
from .shared.command import add_checkpoint, add_picture, exit_in_one_line, new_parser
from .shared.pictures import new_figure, save

SIDES = ("encoder", "decoder")
KEYS, VALUES = "norm of the key table, |w^K|", "norm of the value table, |w^V|"
SCORES = "mean contribution to the score"


def maps(state: dict) -> dict[tuple[str, str], list[Tensor]]:
    """(side, kind): for each layer a map [h, 2k+1], or [1, 2k+1] of norms or scalars if its heads share a table.

    Raises:
        InputError: if the model has no relative positions
    """
    model, found = state["model"], defaultdict(list)
    for side in SIDES:
        query = re.compile(rf"{side}\.layers\.(\d+)\.self_attn\.q_proj\.weight")
        for number in sorted(int(match[1]) for match in map(query.fullmatch, model) if match):
            tables = (f"{side}.layers.{number}.self_attn.relative_{name}" for name in ("keys", "values", "scalars"))
            keys, values, scalars = map(model.get, tables)
            if keys is not None:
                found[side, KEYS].append(per_head(keys).norm(dim=-1))
                found[side, SCORES].append(mean_scores(state, side, number, per_head(keys)))
            if values is not None:
                found[side, VALUES].append(per_head(values).norm(dim=-1))
            if scalars is not None:
                found[side, SCORES].append(scalars.float().reshape(-1, scalars.size(-1)))
    if not found:
        names = "relative_keys, relative_values or relative_scalars"
        reason = f"the checkpoint has no relative positions (no {names} in its self-attention)"
        raise InputError(f"{reason}: name one of a relative_transformer")
    return found


def per_head(table: Tensor) -> Tensor:
    """[2k+1, d_z] → [1, 2k+1, d_z]; a table of each head as it is."""
    return table.float().reshape(-1, *table.shape[-2:])


def mean_scores(state: dict, side: str, number: int, keys: Tensor) -> Tensor:
    """[h, 2k+1]: (E[x] W^Q + b^Q)·w^K / √d_z of a layer with keys [h or 1, 2k+1, d_z]."""
    projection = f"{side}.layers.{number}.self_attn.q_proj"
    weight, bias = (state["model"][f"{projection}.{name}"].float() for name in ("weight", "bias"))
    queries = (weight @ mean_input(state, side, number) + bias).view(-1, 1, keys.size(-1))  # [h, 1, d_z]
    return (queries * keys).sum(dim=-1) * keys.size(-1) ** -0.5


def mean_input(state: dict, side: str, number: int) -> Tensor:
    """E[x] [d] of a layer's self-attention, as the module's docstring says."""
    model, chosen = state["model"], saved_options(state, "model")
    if chosen[f"{side}_normalize_before"]:
        return model[f"{side}.layers.{number}.self_attn_layer_norm.bias"].float()
    if number:
        norms = ("final", "encoder_attn", "self_attn")  # the last that a layer has: a branched one has no FFN sublayer
        names = [f"{side}.layers.{number - 1}.{norm}_layer_norm.bias" for norm in norms]
        return next(model[name] for name in names if name in model).float()
    if chosen["layernorm_embedding"]:
        return model[f"{side}.layernorm_embedding.bias"].float()
    embeddings = model[f"{side}.embed_tokens.weight"].float()
    return embeddings.mean(dim=0) * (1 if chosen["no_scale_embedding"] else embeddings.size(1) ** 0.5)


def draw(found: dict[tuple[str, str], list[Tensor]], title: str):
    """The figure: sides below each other, kinds side by side."""
    kinds = [kind for kind in (KEYS, VALUES, SCORES) if any(kind == k for _, k in found)]
    figure = new_figure(5 * len(kinds), 9, title)
    axes = figure.subplots(len(SIDES), len(kinds), squeeze=False)
    for axis, (side, kind) in zip(axes.flatten(), itertools.product(SIDES, kinds)):
        layers = found[side, kind]
        values = torch.cat(layers)  # [lines, 2k+1]
        k = values.size(1) // 2
        if side == "decoder":
            values[:, k + 1 :] = float("nan")
        bound = values.nan_to_num().abs().max().item() or 1.0
        colours = {"cmap": "RdBu_r", "vmin": -bound, "vmax": bound} if kind == SCORES else {"cmap": "viridis"}
        place = (-k - 0.5, k + 0.5, len(values), 0)
        image = axis.imshow(values.numpy(), aspect="auto", interpolation="none", extent=place, **colours)
        axis.set_facecolor("0.9")
        ends = [0, *itertools.accumulate(map(len, layers))]
        for end in ends[1:-1]:
            axis.axhline(end, color="black" if kind == SCORES else "white", linewidth=0.8)
        middles = [(start + end) / 2 for start, end in itertools.pairwise(ends)]
        axis.set_yticks(middles, [str(number) for number in range(1, len(layers) + 1)])
        axis.tick_params(axis="y", length=0)
        lines = "layer, a line for each head" if len(values) > len(layers) else "layer"
        axis.set(title=f"{side}: {kind}", xlabel="distance from query to key", ylabel=lines)
        figure.colorbar(image, ax=axis)
    return figure


@exit_in_one_line("nmt-plot-relative-positions")
def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("nmt-plot-relative-positions", __doc__)
    add_checkpoint(parser)
    add_picture(parser)
    args = parser.parse_args(arguments)
    save(draw(maps(load(args.checkpoint)), str(args.checkpoint)), args.output)
    print(args.output)


if __name__ == "__main__":
    main()
