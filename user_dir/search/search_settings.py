"""A run's settings of beam search: search.json beside its checkpoints.

    python -m user_dir.search.search_settings RUN/search.json --tokenizer moses --beam 4 --lenpen 1

saves the settings with which fairseq-generate searches if it is given these options. They are the run's defaults.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Iterator

from ..errors import InputError, flag
from ..files import write_text

FILE = "search.json"
# Without search.json, as in Vaswani et al. 2017, 6.1: a beam of 4, and at most 50 subwords more than in the source.
DEFAULTS = {"beam": 4, "lenpen": 1.0, "lenpen_form": "fairseq", "max_len_a": 1.0, "max_len_b": 50}
FAIRSEQS = {**DEFAULTS, "beam": 5, "max_len_a": 0.0, "max_len_b": 200}  # fairseq-generate's
FORMS = ("fairseq", "vaswani")  # of the length penalty, see search/beam.py
MOST = 1_000_000
RANGES = {"beam": (1, MOST), "lenpen": (-10, 10), "max_len_a": (0, MOST), "max_len_b": (1, MOST)}
RANGES |= dict.fromkeys(("nbest", "max_tokens", "batch_size"), (1, 10**9))  # counts of a single search, not kept

OF_GENERATE = ("lm_path", "prefix_size", "score_reference")
# Options of fairseq's commands that have no effect or always fail: what to do instead.
IGNORED = {
    "num_shards": "each part would translate all sentences: split the text, and use nmt-translate",
    "distributed_world_size": "fairseq-generate would translate a part of the sentences only: omit it",
    **dict.fromkeys(OF_GENERATE, "only fairseq-generate reads it: omit it, or use that command"),
    **dict.fromkeys(("print_step", "replace_unk", "retain_iter_history"), "fairseq would fail: omit it"),
    "sacrebleu": "it has no effect: use --scoring sacrebleu, or nmt-score",
}


def search_settings(kept: dict, **given) -> dict:
    """All settings by fairseq's names: those `given` (not None), else those in `kept`, else DEFAULTS."""
    return {**DEFAULTS, **kept, **{name: value for name, value in given.items() if value is not None}}


def kept_settings(folder: pathlib.Path) -> dict:
    """The settings in `folder`'s search.json; empty if there is no such file.

    Raises:
        InputError: if it is malformed
    """
    path = folder / FILE
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON ({error}): correct or remove it") from None
    return checked(kept, path)


def checked(kept, path: pathlib.Path) -> dict:
    """Returns `kept`, which was read from `path`.

    Raises:
        InputError: if it does not consist of settings
    """
    if not isinstance(kept, dict) or not kept.keys() <= DEFAULTS.keys():
        raise InputError(f"{path} has to hold an object with only {', '.join(DEFAULTS)}: correct or remove it")
    if found := [*faults(kept)]:
        raise InputError(f"{path}: {'; '.join(found)}: correct or remove it")
    return kept


def faults(settings: dict) -> Iterator[str]:
    """Yields a message for each setting, or count of a single search, that has an invalid value."""
    for name, value in settings.items():
        if name == "lenpen_form":
            if value not in FORMS:
                yield f"{name} {value!r}: give one of {', '.join(FORMS)}"
            continue
        whole, (least, most) = isinstance(DEFAULTS.get(name, 1), int), RANGES[name]
        right = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if not (right and least <= value <= most):
            yield f"{name} {value!r}: give a {'whole ' if whole else ''}number from {least} to {most}"


def refuse_search(**search) -> None:
    """Raises InputError, naming the arguments, for values in `search` that are invalid, and for those of IGNORED.

    None stands for a default.
    """
    names = (*RANGES, "lenpen_form")
    given = {name: value for name, value in search.items() if name in names and value is not None}
    found = [*faults(given)]
    found += [f"{flag(name)}: {remedy}" for name, remedy in IGNORED.items() if search.get(name)]
    if not found and given.get("nbest", 1) > given.get("beam", MOST):
        found = [f"nbest {given['nbest']} is larger than the beam {given['beam']}: give a larger beam"]
    if found:
        raise InputError("; ".join(found))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("output", type=pathlib.Path)
    for name, value in FAIRSEQS.items():
        parser.add_argument(flag(name), type=type(value), default=value)
    settings = vars(parser.parse_known_args(arguments)[0])
    output = settings.pop("output")
    try:
        refuse_search(**settings)
        write_text(output, json.dumps(settings) + "\n")
    except (InputError, OSError) as error:
        sys.exit(f"search_settings: {error}")


if __name__ == "__main__":
    main()
