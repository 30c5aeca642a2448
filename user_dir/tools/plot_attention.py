"""Translates a sentence and draws the attention weights of every head of a layer.

    python -m user_dir.tools.plot_attention RUN/average.pt --sentence "It was empty." \\
        --attention encoder --layer 5 --output attention.png

A map is a head: a line is a query, a column a key, and a line sums to 1. A decoder's line bears the subword that it is
about to write, and its keys are the subwords written so far, the first of them the </s> that fairseq starts from.
The weights are those of the model as it is: the translation that beam search found goes through it once more as a
whole. Vaswani et al. 2017 show some such maps in their figures 3 to 5.

The sentence is prepared as data-prep/prepare.py prepared the training data; --already-split takes subwords as they
stand.
"""

import argparse
import contextlib

import torch
from fairseq.data import Dictionary
from sacremoses import MosesDetokenizer
from torch import Tensor

from ..attention import MultiheadAttention
from ..errors import InputError
from ..translator import Translator
from .shared.command import add_checkpoint, add_data, add_picture, add_search, exit_in_one_line, new_parser
from .shared.pictures import new_figure, save

# attention: side of the model, what marks the module, words for queries and keys
ATTENTIONS = {
    "encoder": ("encoder", "self_attention", "source subword", "source subword"),
    "decoder": ("decoder", "self_attention", "target subword to be written", "target subword written before"),
    "encoder-decoder": ("decoder", "encoder_decoder_attention", "target subword to be written", "source subword"),
}


def choose(model, kind: str, number: int) -> MultiheadAttention:
    """The attention `kind` (of ATTENTIONS) in layer `number`, counted from 1.

    Raises:
        InputError: if the layer is not there, or is not of this user directory
    """
    side, mark, *_ = ATTENTIONS[kind]
    layers = getattr(model, side).layers
    if not 1 <= number <= len(layers):
        raise InputError(f"--layer {number}: the {side} has layers 1 to {len(layers)}")
    for module in layers[number - 1].modules():
        if isinstance(module, MultiheadAttention) and getattr(module, mark):
            return module
    foreign = f"{kind} layer {number} has no attention of this user directory"
    raise InputError(f"{foreign}: train with one of its architectures")


@contextlib.contextmanager
def recorded(attention: MultiheadAttention):
    """A list of the weights [B, h, T, S] of each call of `attention` until the end of the `with`."""
    weights, attend = [], attention.attend

    def attend_and_record(q, k, v, mask, need_weights):
        heads, found = attend(q, k, v, mask, True)
        weights.append(found)
        return heads, found if need_weights else None

    attention.attend = attend_and_record  # hides the method of the class
    try:
        yield weights
    finally:
        del attention.attend


@torch.no_grad()
def attention_weights(model, attention: MultiheadAttention, source: Tensor, target: Tensor) -> Tensor:
    """[h, T, S] of `attention` while `model` reads source [S] and is made to write target [T], both ending in </s>."""
    with recorded(attention) as weights:
        model(source[None], torch.tensor([len(source)]), target.roll(1)[None])
    return weights[0][0].float()


def labels(tokens: Tensor, dictionary: Dictionary) -> list[str]:
    """The subwords as a person writes them: ' and not &apos;."""
    return [MosesDetokenizer().unescape_xml(dictionary[token]) for token in tokens]


def draw(weights: Tensor, queries: list[str], keys: list[str], axis_names: tuple[str, str], title: str):
    """The figure: a map of each head of weights [h, T, S], four beside each other."""
    columns = min(4, len(weights))
    lines = -(-len(weights) // columns)
    # In inches; smaller for very long sentences.
    cell = min(0.22, 50 / (columns * len(keys)), 50 / (lines * len(queries)))
    width, height = (max(1.6, cell * count) for count in (len(keys), len(queries)))
    figure = new_figure(columns * (width + 0.15) + 1.9, lines * (height + 0.35) + 1.9, title)
    axes = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).flatten()
    text = {"fontsize": max(2, min(8, cell * 72 * 0.6))}
    colours = {"cmap": "Blues", "vmin": 0, "vmax": weights.max().item()}
    for head, (axis, values) in enumerate(zip(axes, weights), 1):
        image = axis.imshow(values.numpy(), aspect="auto", interpolation="none", **colours)
        axis.set_title(f"head {head}", fontsize=9)
        axis.set_xticks(range(len(keys)), keys, rotation=90, **text)
        axis.set_yticks(range(len(queries)), queries, **text)
    for axis in axes[len(weights) :]:
        axis.remove()
    figure.supylabel(f"query: {axis_names[0]}", fontsize=10)
    figure.supxlabel(f"key: {axis_names[1]}", fontsize=10)
    figure.colorbar(image, ax=list(axes[: len(weights)]), label="attention weight", aspect=40, fraction=0.03, pad=0.01)
    return figure


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = new_parser("plot_attention", __doc__)
    add_checkpoint(parser)
    add_data(parser, "data", nargs="?")
    parser.add_argument("--sentence", required=True, help="the sentence to translate")
    kinds = "which attention (default: %(default)s)"
    parser.add_argument("--attention", choices=ATTENTIONS, default="encoder-decoder", help=kinds)
    parser.add_argument("--layer", type=int, metavar="N", help="which layer, counted from 1 (default: the last)")
    split = "the sentence is subwords separated by spaces, as in the training data"
    parser.add_argument("--already-split", action="store_true", help=split)
    add_search(parser)
    add_picture(parser)
    return parser.parse_args(arguments)


@exit_in_one_line("plot_attention")
def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    translator = Translator(args.checkpoint, data=args.data, already_split=args.already_split, device="cpu")
    (model,), task = translator.models, translator.task
    side, _, *axis_names = ATTENTIONS[args.attention]
    layers = len(getattr(model, side).layers)
    number = layers if args.layer is None else args.layer
    attention = choose(model, args.attention, number)
    source = translator.binarise(translator.encode(args.sentence))
    if not 1 < len(source) <= translator.longest + 1:
        raise InputError(f"--sentence has {len(source) - 1} subwords: this model takes 1 to {translator.longest}")
    target = translator.beam_search([source], beam=args.beam, lenpen=args.lenpen)[0][0]["tokens"]
    weights = attention_weights(model, attention, source, target)
    read, written = labels(source, task.source_dictionary), labels(target, task.target_dictionary)
    queries = read if side == "encoder" else written
    keys = written[-1:] + written[:-1] if args.attention == "decoder" else read
    title = f"{args.checkpoint}: {args.attention} attention, layer {number} of {layers}"
    save(draw(weights, queries, keys, axis_names, title), args.output)
    print(f"{translator.decode(task.target_dictionary.string(target))}\n{args.output}")


if __name__ == "__main__":
    main()
