"""The files of a run, and its record: run.json, which a recipe writes (examples/record.py).

It says what was trained: `corpus` with a checksum, `command`, `options`, `commits`, `versions`, `machine`, `seed`,
`updates`, `words_per_second`, `validation`, …; and its `scores`: for each name the score and its signature.
"""

import json
import pathlib
import re

from ...errors import InputError
from ...files import write_text

RECORD = "run.json"
LOG = "train.log"
AVERAGE = "average.pt"
TRANSLATIONS = "generate.log"  # fairseq-generate's output
VALIDATION = re.compile(r"\{\s+(\"update\": [^}]*?)\s+\}")  # is written in one line


def read_record(path: pathlib.Path) -> dict:
    """The record in `path`.

    Raises:
        InputError: if it is missing or malformed
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not all(isinstance(score, dict) and "score" in score for score in record.get("scores", {}).values()):
            raise ValueError("a score is not an object with the key score")
        if not isinstance(record.get("corpus", {}), dict):
            raise ValueError("the corpus is not an object")
        points = record.get("validation") or []
        if not all(isinstance(point, dict) and isinstance(point.get("update"), int) for point in points):
            raise ValueError("a validation is not an object with the number of its update")
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is not the record of a run ({error}): name another file, or remove it") from None
    return record


def checksum_of_data(record: dict) -> str | None:
    """The checksum of the data of a training; their folder may have been renamed."""
    return record.get("corpus", {}).get("sha256")


def write_record(path: pathlib.Path, record: dict) -> None:
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    text = VALIDATION.sub(lambda match: "{" + re.sub(r"\s*\n\s*", " ", match[1]) + "}", text)
    write_text(path, text)
