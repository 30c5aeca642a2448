"""Averages the parameters of checkpoints of one training run into one checkpoint.

    nmt-average-checkpoints RUN --last 5 --by update --output RUN/average.pt
    nmt-average-checkpoints a.pt b.pt c.pt --output average.pt

Vaswani et al. 2017 (section 6.1) average the last 5 checkpoints of a base and the last 20 of a big model.
"""

import pathlib

import torch

from ..checkpoints.files import (
    NUMBERED,
    load,
    meaning,
    numbered,
    refuse_not_finite,
    save,
    updates_of,
    without_training_state,
)
from ..errors import InputError
from ..files import refuse_output, write
from ..training.last_checkpoint import LAST
from .shared.command import add_output, exit_in_one_line, new_parser, positive, refuse_repeated


def last_checkpoints(folder: pathlib.Path, count: int, by: str, fewer: bool) -> list[pathlib.Path]:
    """The `count` checkpoints of `folder` with the highest epoch or update ("epoch", "update"), the newest last.

    With `fewer`, all of them where there are fewer, or checkpoint_last.pt where there is none.

    Raises:
        InputError: if there are fewer, without `fewer`
    """
    found = numbered(folder, by)
    if len(found) < count and not fewer:
        reason = f"{folder} holds {len(found)} checkpoints by {by} and {count} are to be averaged"
        remedy = f"keep more (--keep-last-epochs, --keep-interval-updates) or ask for fewer (--last {len(found)})"
        if not found:
            others = [name for name in NUMBERED if numbered(folder, name)]
            remedy = f"add --by {others[0]}" if others else f"name another folder, or {folder / LAST} alone"
        raise InputError(f"{reason}: {remedy}")
    return [found[number] for number in sorted(found)[-count:]] or [folder / LAST]


def average(paths: list[pathlib.Path]) -> dict:
    """The last of the checkpoints, its parameters replaced by the mean over all; files are read one at a time.

    Sums are float32 whatever the files hold; the mean has the files' precision. A tensor without floating-point numbers
    (a counter) is the last file's.

    Raises:
        InputError: if the parameters' names, shapes or meaning (`meaning`) differ, two files are of the same update, or
            a parameter is not finite
    """
    sums: dict[str, torch.Tensor] = {}
    meant: dict = {}
    trained: dict[int, pathlib.Path] = {}  # by the number of updates
    for path in paths:
        state = load(path)  # memory-mapped: the optimizer's state is not read
        updates = updates_of(state)
        if updates and (other := trained.setdefault(updates, path)) != path:  # checkpoint_best.pt, another seed, …
            reason = f"{path} and {other} are both of update {updates}"
            raise InputError(f"{reason}: name different checkpoints of one run")
        model = state["model"]
        shapes, known = ({name: tuple(value.shape) for name, value in of.items()} for of in (model, sums))
        found = meaning(state)  # an older version's checkpoint says less
        changed = [name for name in found if meant.setdefault(name, found[name]) != found[name]]
        if sums and (shapes != known or changed):
            name = min(changed) if changed else min(set(shapes.items()) ^ set(known.items()))[0]
            one, other = (of.get(name, "missing") for of in (shapes | found, known | meant))
            reason = f"{name} is {one} in the one and {other} in the other"
            raise InputError(f"{path} is not of the same model as {paths[0]}: {reason}: name checkpoints of one run")
        for name, value in model.items():
            refuse_not_finite(path, name, value, "omit this checkpoint")
            if value.is_floating_point():
                value = sums[name] + value.float() if name in sums else value.float()
            sums[name] = value
    averaged: dict[tuple, torch.Tensor] = {}  # by place in memory: fairseq's file has shared parameters once
    for name, value in model.items():
        if value.is_floating_point():
            mean = (sums[name] / len(paths)).to(value.dtype)
            known = averaged.setdefault((value.data_ptr(), *value.shape, *value.stride()), mean)
            model[name] = known if torch.equal(known, mean) else mean
    if "dictionaries" in meant:
        state["task_state"]["dictionaries"] = meant["dictionaries"]
    return without_training_state(state)


@exit_in_one_line("nmt-average-checkpoints")
def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("nmt-average-checkpoints", __doc__)
    inputs = "checkpoint files, or one folder of a run with --last"
    parser.add_argument("inputs", nargs="+", type=pathlib.Path, help=inputs)
    parser.add_argument("--last", type=positive, metavar="N", help="average the last N checkpoints of the folder")
    by = "order them by epoch (checkpointE.pt) or by update (checkpoint_E_U.pt)"
    parser.add_argument("--by", choices=NUMBERED, help=by + " (default: epoch)")
    fewer = f"average all there are, if there are fewer than N; {LAST} alone, if there is none"
    parser.add_argument("--or-fewer", action="store_true", help=fewer)
    add_output(parser)
    args = parser.parse_args(arguments)
    if args.last and len(args.inputs) == 1 and not args.inputs[0].is_dir():
        raise InputError(f"there is no folder {args.inputs[0]}: name the folder of a run, or omit --last")
    if bool(args.last) != (len(args.inputs) == 1 and args.inputs[0].is_dir()):
        parser.error("give either checkpoint files, or one folder and --last N")
    if (args.by or args.or_fewer) and not args.last:
        parser.error("--by and --or-fewer go with --last N")
    paths = args.inputs
    if args.last:
        paths = last_checkpoints(paths[0], args.last, args.by or "epoch", args.or_fewer)
    refuse_repeated(paths)
    refuse_output(args.output, paths)
    averaged = average(paths)
    write(args.output, lambda partial: save(averaged, partial), paths)
    print(f"{args.output}: the average of {', '.join(path.name for path in paths)}")


if __name__ == "__main__":
    main()
