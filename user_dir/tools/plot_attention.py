"""Translates a sentence and draws the attention weights of every head of a layer.

    nmt-plot-attention RUN --sentence "It was empty." \\
        --attention encoder --layer 2 --output attention.png
    nmt-plot-attention RUN --sentence "It was empty." --output attention.html

A picture has a map for each head: a row is a query, a column a key, and a row sums to 1. A decoder's row bears the
subword that it is about to write, and its keys are the subwords written so far, the first of them the </s> that fairseq
starts from. The weights are those of the model as it is: the translation that beam search found goes through it once
more as a whole.

An output that ends in .html is one page for a browser, which needs nothing else: lines between the two sentences as in
figures 3 to 5 of Vaswani et al. 2017. It has every attention, layer and head, to be chosen there; --attention and
--layer say which are shown first.

The sentence is prepared as data-prep/prepare.py prepared the training data; --pretokenised takes subwords as they
stand.
"""

from torch import Tensor

from ..errors import InputError
from ..files import refuse_output, write_text
from ..serving.translator import Translator
from .attention_page import attention, page
from .shared.attentions import ATTENTIONS, attention_weights, attentions_of, subwords
from .shared.command import add_checkpoint, add_data, add_picture, add_search, exit_in_one_line, new_parser
from .shared.pictures import format_of, new_figure, save


def draw(weights: Tensor, queries: list[str], keys: list[str], axis_names: list[str], title: str):
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
    for axis in axes[: len(weights)][-columns:]:  # some have no other head below them
        axis.tick_params(labelbottom=True)
    figure.supylabel(f"query: {axis_names[0]}", fontsize=10)
    figure.supxlabel(f"key: {axis_names[1]}", fontsize=10)
    figure.colorbar(image, ax=list(axes[: len(weights)]), label="attention weight", aspect=40, fraction=0.03, pad=0.01)
    return figure


@exit_in_one_line("nmt-plot-attention")
def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("nmt-plot-attention", __doc__)
    add_checkpoint(parser)
    add_data(parser)
    parser.add_argument("--sentence", required=True, metavar="TEXT", help="the sentence to translate")
    kinds = "the attention to draw; in a page, the one shown first (default: %(default)s)"
    parser.add_argument("--attention", choices=ATTENTIONS, default="encoder-decoder", help=kinds)
    parser.add_argument("--layer", type=int, metavar="N", help="which layer, counted from 1 (default: the last)")
    split = "the sentence is subwords separated by spaces, as in the training data"
    parser.add_argument("--pretokenised", "--already-split", action="store_true", help=split)  # the latter up to 0.1
    add_search(parser)
    add_picture(parser, "html")
    args = parser.parse_args(arguments)
    refuse_output(args.output)
    interactive = args.output.suffix.lower() == ".html"
    if not interactive:
        format_of(args.output)  # wrong ones end the command before the search
    translator = Translator(args.checkpoint, data=args.data, pretokenised=args.pretokenised, device="cpu")
    (model,), task = translator.models, translator.task
    attentions = {name: attentions_of(model, name) for name in ATTENTIONS}
    layers, (side, _, *axis_names) = attentions[args.attention], ATTENTIONS[args.attention]
    number = len(layers) if args.layer is None else args.layer
    if not 1 <= number <= len(layers):
        raise InputError(f"--layer {number}: the {side} has layers 1 to {len(layers)}: choose one")
    source = translator.binarise(translator.encode(args.sentence))
    if not 1 < len(source) <= translator.longest + 1:
        raise InputError(f"--sentence has {len(source) - 1} subwords: give 1 to {translator.longest}")
    target = translator.beam_search([source], beam=args.beam, lenpen=args.lenpen)[0][0]["tokens"]
    translation = translator.decode(task.target_dictionary.string(target))
    read, written = subwords(source, task.source_dictionary), subwords(target, task.target_dictionary)
    before = written[-1:] + written[:-1]
    words = {"encoder": (read, read), "decoder": (written, before), "encoder-decoder": (written, read)}
    if interactive:
        shown = [
            attention(name, *words[name], modules, attention_weights(model, modules, source, target))
            for name, modules in attentions.items()
        ]
        first = [*ATTENTIONS].index(args.attention), number - 1
        text = page(f"Attention of {args.checkpoint}", (args.sentence, translation), shown, first)
        write_text(args.output, text)
    else:
        (weights,) = attention_weights(model, [layers[number - 1]], source, target)
        title = f"{args.checkpoint}: {args.attention} attention, layer {number} of {len(layers)}"
        save(draw(weights, *words[args.attention], axis_names, title), args.output)
    print(f"{translation}\n{args.output}")


if __name__ == "__main__":
    main()
