"""The settings of beam search with which a run is translated: search.json beside its checkpoints.

    python -m user_dir.serving.search_settings RUN/search.json --tokenizer moses --beam 4 --lenpen 1

keeps those of these options of fairseq-generate that set one. They hold where nobody names others.
"""

import argparse
import json
import pathlib

from ..errors import InputError
from ..files import write

FILE = "search.json"
# Vaswani et al. 2017, 6.1: a beam of 4, and at most 50 subwords more than the source has.
DEFAULTS = {"beam": 4, "lenpen": 1.0, "lenpen_form": "fairseq", "max_len_a": 1.0, "max_len_b": 50}
FORMS = ("fairseq", "vaswani")  # of the length penalty, see generator.py
MOST = 1_000_000


def search_settings(kept: dict, **given) -> dict:
    """All settings, by fairseq's names: those that are `given` (not None), else those that were kept, else DEFAULTS."""
    return {**DEFAULTS, **kept, **{name: value for name, value in given.items() if value is not None}}


def kept_settings(folder: pathlib.Path) -> dict:
    """Those of DEFAULTS' names that `folder`'s search.json sets; none where there is no such file.

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
    """`kept`, which `path` holds.

    Raises:
        InputError: if it is something else than settings
    """
    fault = None
    if not isinstance(kept, dict) or not kept.keys() <= DEFAULTS.keys():
        fault = f"has to hold an object with no other names than {', '.join(DEFAULTS)}"
    else:
        for name, value in kept.items():
            if name == "lenpen_form":
                fault = fault if value in FORMS else f"{name} has to be one of {', '.join(FORMS)}"
                continue
            whole, least = isinstance(DEFAULTS[name], int), {"beam": 1, "lenpen": -MOST}.get(name, 0)
            if type(value) not in ((int,) if whole else (int, float)) or not least <= value <= MOST:
                fault = f"{name} has to be a {'whole ' if whole else ''}number from {least} to {MOST}"
    if fault:
        raise InputError(f"{path}: {fault}: correct or remove it")
    return kept


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("output", type=pathlib.Path)
    for name, value in DEFAULTS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value))
    given = vars(parser.parse_known_args(arguments)[0])
    output = given.pop("output")
    kept = json.dumps({name: value for name, value in given.items() if value is not None}) + "\n"
    write(output, lambda partial: partial.write_text(kept))


if __name__ == "__main__":
    main()
