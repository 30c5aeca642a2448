"""Writes a checkpoint as one TorchScript program, which runs where torch does, also without Python and fairseq.

    python -m user_dir.tools.export_torchscript RUN/average.pt --output RUN/model.ts

    program = torch.jit.load("RUN/model.ts")
    log_p = program(source, target)    # [B, S], [B, T] → [B, T, V]: log p of each subword to follow target[:, :t + 1]

Source and target are subwords as numbers, in any sizes. A source ends in </s> (2), and a target begins with it; <pad>
(1) fills a source from the left and a target from the right. The program carries its dictionaries, a subword a line
from number 4 on: `files = {"source.txt": "", "target.txt": ""}; torch.jit.load(path, _extra_files=files)`.

It has no cache: who writes a beam search around it gives all of a hypothesis at each step. A neighbourhood
(--restricted-attention) depends on lengths in a way that a program cannot, and is refused.
"""

import pathlib
import warnings

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from ..errors import InputError
from ..serving.models import data_of, load_models
from .shared.command import add_checkpoint, add_data, exit_in_one_line, new_parser
from .shared.files import write


class LogProbabilities(nn.Module):
    """log p(subword | source, target so far) of a model."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.encoder, self.decoder = model.encoder, model.decoder

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        no_layer = -1  # whose attention weights would be returned
        logits, _ = self.decoder(target, encoder_out=self.encoder(source), alignment_layer=no_layer)
        return logits.log_softmax(-1)


def example(dictionary: Dictionary, batch: int, source: int, target: int) -> tuple[Tensor, Tensor]:
    """Sentences of any subwords, with padding: what is traced is then there for all."""
    found = [torch.randint(dictionary.nspecial, len(dictionary), (batch, length)) for length in (source, target)]
    found[0][0, 0] = found[1][0, -1] = dictionary.pad()
    return found[0], found[1]


def traced(path: pathlib.Path, data: pathlib.Path) -> tuple[torch.jit.ScriptModule, dict[str, str]]:
    """The program of the model `path`, and its dictionaries as files.

    Raises:
        InputError: if the program cannot be made
    """
    (model,), task, _ = load_models([path], data, autocast="off")
    if model.cfg.restricted_attention != "none":
        given = f"--restricted-attention {model.cfg.restricted_attention}"
        raise InputError(f"{path} has {given}, whose blocks no program of torch.jit's can cut: use nmt-translate")
    both = {"source.txt": task.source_dictionary, "target.txt": task.target_dictionary}
    smallest = min(both.values(), key=len)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is decided here holds for all sizes; and that torch.export is newer
        program = torch.jit.trace(LogProbabilities(model), example(smallest, 3, 9, 7), check_trace=False)
    return program, {name: "".join(f"{word}\n" for word in found.symbols[4:]) for name, found in both.items()}


@torch.no_grad()
@exit_in_one_line("export_torchscript")
def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("export_torchscript", __doc__)
    add_checkpoint(parser)
    add_data(parser, "--data")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the file to write")
    args = parser.parse_args(arguments)
    program, files = traced(args.checkpoint, args.data or data_of([args.checkpoint]))
    write(args.output, lambda partial: torch.jit.save(program, str(partial), _extra_files=files))
    print(f"{args.output}: {args.checkpoint} as a TorchScript program")


if __name__ == "__main__":
    main()
