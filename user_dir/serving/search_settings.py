"""A run's settings of beam search: search.json beside its checkpoints.

    python -m user_dir.serving.search_settings RUN/search.json --tokenizer moses --beam 4 --lenpen 1

saves the settings among fairseq-generate's options. They are the run's defaults.
"""

import argparse
import json
import pathlib
import sys

from ..errors import InputError
from ..files import write

FILE = "search.json"
# Vaswani et al. 2017, 6.1: a beam of 4, and at most 50 subwords more than in the source.
DEFAULTS = {"beam": 4, "lenpen": 1.0, "lenpen_form": "fairseq", "max_len_a": 1.0, "max_len_b": 50}
FORMS = ("fairseq", "vaswani")  # of the length penalty, see search/beam.py
MOST = 1_000_000
RANGES = {"beam": (1, MOST), "lenpen": (-10, 10), "max_len_a": (0, MOST), "max_len_b": (1, MOST)}


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
        raise InputError(f"{path} cannot be read as JSON ({error}): remove it, or average the run again") from None
    return checked(kept, path)


def checked(kept, path: pathlib.Path) -> dict:
    """Returns `kept`, which was read from `path`.

    Raises:
        InputError: if it does not consist of settings
    """
    if not isinstance(kept, dict) or not kept.keys() <= DEFAULTS.keys():
        raise InputError(f"{path} has to hold an object with only {', '.join(DEFAULTS)}: correct or remove it")
    faults = []
    for name, value in kept.items():
        if name == "lenpen_form":
            if value not in FORMS:
                faults.append(f"{name} has to be one of {', '.join(FORMS)}")
            continue
        whole, (least, most) = isinstance(DEFAULTS[name], int), RANGES[name]
        if type(value) not in ((int,) if whole else (int, float)) or not least <= value <= most:
            faults.append(f"{name} has to be a {'whole ' if whole else ''}number from {least} to {most}")
    if faults:
        raise InputError(f"{path}: {'; '.join(faults)}: correct or remove it")
    return kept


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("output", type=pathlib.Path)
    for name, value in DEFAULTS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value))
    given = vars(parser.parse_known_args(arguments)[0])
    output = given.pop("output")
    try:
        kept = checked({name: value for name, value in given.items() if value is not None}, output)
        write(output, lambda partial: partial.write_text(json.dumps(kept) + "\n"))
    except InputError as error:
        sys.exit(f"search_settings: {error}")


if __name__ == "__main__":
    main()
