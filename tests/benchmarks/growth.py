"""How the time of a training step grows with sentence length, batch, vocabulary and layers, and its least time.

    python tests/benchmarks/growth.py --output growth.png

One of them grows at a time; the others stay at 32 words, 1,024 words on each side, a vocabulary of 8,000 and 2 + 2
layers, of `_base` width. A step is forward, loss and backward. The dotted line is the time of its multiplications,
if all are as fast as in the FFN's first product. Run it with nothing else running.
"""

import argparse
import pathlib
import statistics

import torch
from speed import build, build_criterion, numbers, random_batch, time_in_turn, training_step

from user_dir.tools.shared.pictures import new_figure, save
from user_dir.transformer.architectures import FAMILIES

USUAL = {"sentence length": 32, "words in a batch": 1024, "vocabulary": 8000, "layers": 2}
GROWING = {
    "sentence length": [16, 32, 64, 128, 256, 512, 1024],
    "words in a batch": [256, 512, 1024, 2048],
    "vocabulary": [2000, 8000, 37000],
    "layers": [1, 2, 4, 6],
}
WIDTH, FFN = 512, 2048
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def multiplications(setting: dict[str, int]) -> float:
    """Multiplications of a step of the Transformer (Vaswani et al. 2017): three times those of its forward pass.

    A word meets 4 d² in self-attention, 4 d² in encoder–decoder attention, 2 d d_ff in the FFN, d V in the projection,
    and 2 n d of scores and weighted values in each attention.
    """
    length, words, vocabulary, layers = (setting[name] for name in USUAL)
    attention = 4 * WIDTH**2 + 2 * length * WIDTH
    encoder_layer, decoder_layer = attention + 2 * WIDTH * FFN, 2 * attention + 2 * WIDTH * FFN
    return 3.0 * words * (layers * (encoder_layer + decoder_layer) + WIDTH * vocabulary)


def seconds_of_a_multiplication() -> float:
    """Median over products [words, d] · [d, d_ff]."""
    x, weight = torch.rand(USUAL["words in a batch"], WIDTH, device=DEVICE), torch.rand(WIDTH, FFN, device=DEVICE)
    (times,) = time_in_turn({"product": lambda: x @ weight}, 50).values()
    return statistics.median(times) / (x.numel() * FFN)


def seconds(family: str, setting: dict[str, int], repeats: int) -> float:
    """Median of a step."""
    length, words, vocabulary, layers = (setting[name] for name in USUAL)
    dictionary = numbers(vocabulary)
    sizes = {"encoder_layers": layers, "decoder_layers": layers, "max_source_positions": 2048}
    model = build(f"{family}_base", "base", dictionary, DEVICE, max_target_positions=2048, **sizes)
    batch, criterion = random_batch(dictionary, words // length, length, DEVICE), build_criterion(dictionary, False)
    times = time_in_turn({family: lambda: training_step(model, batch, criterion)}, repeats)
    return statistics.median(times[family])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", nargs="+", choices=FAMILIES, default=["vaswani_transformer", "relative_transformer"])
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the picture")
    args = parser.parse_args()
    figure = new_figure(13, 3.2)
    panels = figure.subplots(1, len(GROWING))
    for panel, (name, values) in zip(panels, GROWING.items(), strict=True):
        settings = [{**USUAL, name: value} for value in values]
        print(name, *values, sep=" | ")
        for family in args.arch:
            measured = [1e3 * seconds(family, setting, args.repeats) for setting in settings]
            print(f"{family}, ms", *(f"{value:.0f}" for value in measured), sep=" | ", flush=True)
            panel.plot(values, measured, marker="o", label=family)
        of_one = 1e3 * seconds_of_a_multiplication()
        floor = [of_one * multiplications(setting) for setting in settings]
        print("multiplications alone, ms", *(f"{value:.0f}" for value in floor), sep=" | ", flush=True)
        panel.plot(values, floor, color="black", linestyle=":", label="multiplications alone")
        panel.set_xscale("log")
        panel.minorticks_off()
        panel.set_xticks(values, values, fontsize="small")
        panel.set(xlabel=name, ylim=(0, None))
    panels[0].set_ylabel("ms of a step")
    panels[0].legend(fontsize="small")
    save(figure, args.output)


if __name__ == "__main__":
    main()
