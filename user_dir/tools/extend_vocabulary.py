"""Adds rows to a model's embeddings for new entries of its dictionaries, to train it further on other text.

    python data-prep/prepare.py --train … --like data/mine --new-characters --output data/other
    nmt-extend-vocabulary RUN --data data/other/data-bin --output RUN/extended.pt
    fairseq-train data/other/data-bin --finetune-from-model RUN/extended.pt …

The new dictionaries begin with all entries of the old ones, in their order. The old entries, among them </s> and <unk>,
keep their rows; the new ones are drawn like fairseq's embeddings, from a normal distribution of mean 0 and variance
1/d_model. The optimizer's state is left out.
"""

import logging
import pathlib

import torch
from fairseq.data import Dictionary
from torch import Tensor

from ..checkpoints.files import load, save, saved_options, without_training_state
from ..errors import InputError
from ..files import refuse_output, write
from ..serving.models import data_of
from ..task import CheckedTranslationConfig, CheckedTranslationTask
from .shared.command import add_checkpoint, add_output, exit_in_one_line, new_parser

# The sides whose words are the rows of these matrices: 0 for the source, 1 for the target.
ROWS = {"encoder.embed_tokens.weight": 0, "decoder.embed_tokens.weight": 1, "decoder.output_projection.weight": 1}


def new_words(old: Dictionary, new: Dictionary) -> int:
    """The number of entries that `new` has after those of `old`.

    Raises:
        InputError: if it does not begin with those
    """
    for number, word in enumerate(old.symbols):
        if word not in new.symbols[number : number + 1]:
            reason = f"the new dictionary does not begin with the old one ({word} is not its entry {number})"
            remedy = "prepare the new text with prepare.py --like and the folder of the old text (or with --srcdict)"
            raise InputError(f"{reason}: {remedy}")
    return len(new) - len(old)


def extend(model: dict[str, Tensor], words: list[int], new: list[int], seed: int) -> None:
    """Adds rows to the matrices of `model`; those that are equal (shared) stay so.

    Args:
        model: parameters by name; ROWS' matrices are [V, d], and are replaced by [V + new, d]
        words: V of the source and the target
        new: the rows that each side gets
        seed: of the new rows

    Raises:
        InputError: if the model lacks one of the matrices, or it has another number of rows
    """
    # The projection in older fairseqs' files, also converted ones, has another name, or is missing where it is shared.
    names = " ".join(model)
    if ".self_attn." in names and ".adaptive_softmax." not in names:
        tied = model.pop("decoder.embed_out", model.get("decoder.embed_tokens.weight"))
        model.setdefault("decoder.output_projection.weight", tied)
    random = torch.Generator().manual_seed(seed)
    extended: list[tuple[Tensor, Tensor]] = []
    for name, side in ROWS.items():
        if (before := model.get(name)) is None:
            raise InputError(f"{name} is missing: name a Transformer's checkpoint, without --adaptive-softmax-cutoff")
        if len(before) != words[side]:
            found = f"{name} has {len(before)} rows and the old dictionary {words[side]} entries"
            raise InputError(f"{found}: name its data-bin (--old)")
        rows = words[side] + new[side]
        known = [after for same, after in extended if torch.equal(same, before) and len(after) == rows]
        if not known:
            drawn = torch.randn(new[side], before.size(1), generator=random) * before.size(1) ** -0.5
            known = [torch.cat([before, drawn.to(before.dtype)])]
        extended.append((before, known[0]))
        model[name] = known[0]


def task_of(data: pathlib.Path, source: str | None, target: str | None) -> CheckedTranslationTask:
    cfg = CheckedTranslationConfig(data=str(data), source_lang=source, target_lang=target)
    return CheckedTranslationTask.setup_task(cfg)


@exit_in_one_line("nmt-extend-vocabulary")
def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("nmt-extend-vocabulary", __doc__)
    add_checkpoint(parser)
    folder = {"type": pathlib.Path, "metavar": "FOLDER"}
    parser.add_argument("--data", required=True, help="the data-bin with the new dictionaries", **folder)
    parser.add_argument("--old", help="the old data-bin (default: that of the training)", **folder)
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="random seed of the new rows (default: %(default)s)"
    )
    add_output(parser)
    args = parser.parse_args(arguments)
    refuse_output(args.output, [args.checkpoint])
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    state = without_training_state(load(args.checkpoint))
    trained, old_data = saved_options(state, "task"), args.old or data_of([args.checkpoint], " (--old)")
    task = task_of(args.data, trained.get("source_lang"), trained.get("target_lang"))
    languages = task.cfg.source_lang, task.cfg.target_lang
    old_task = task_of(old_data, *languages)
    old_task.load_state_dict(state["task_state"])
    old, new = ([of.source_dictionary, of.target_dictionary] for of in (old_task, task))
    added = [*map(new_words, old, new)]
    if not any(added):
        raise InputError(f"{args.data} has the dictionaries of {args.checkpoint}: train it further as it is")
    extend(state["model"], [*map(len, old)], added, args.seed)
    state["task_state"] = task.state_dict()
    for group in ("task", "model"):  # fairseq-train keeps the data's place among both
        if "data" in saved_options(state, group):
            saved_options(state, group)["data"] = str(args.data)
    write(args.output, lambda partial: save(state, partial), [args.checkpoint])
    more = " and ".join(f"{count} more entries in {language}" for count, language in zip(added, languages))
    print(f"{args.output}: {args.checkpoint} with {more}")


if __name__ == "__main__":
    main()
