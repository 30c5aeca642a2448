"""Segments by length."""

import dataclasses
import pathlib

import numpy as np

from ...errors import InputError
from ..shared.translations import read_lines


@dataclasses.dataclass
class Bucket:
    """Segments of like length."""

    label: str  # such as 6–10
    inside: np.ndarray  # their numbers


def words(path: pathlib.Path | None, references: list[str]) -> np.ndarray:
    """The length in words of each line of the file at `path`, or else of each reference.

    Raises:
        InputError: if there are not as many lines as references
    """
    lines = read_lines(path) if path else references
    if len(lines) != len(references):
        raise InputError(f"{path} has {len(lines)} lines and there are {len(references)} segments")
    return np.array([len(line.split()) for line in lines])


def buckets(lengths: np.ndarray, bounds: list[int] | None) -> list[Bucket]:
    """By length in words; `bounds` are the longest lengths of all buckets but the last.

    None: five with about as many segments each.
    """
    if bounds is None:
        bounds = np.quantile(lengths, [0.2, 0.4, 0.6, 0.8], method="inverted_cdf").tolist()
    shortest, longest = lengths.min(), lengths.max()
    edges = [shortest - 1, *sorted({bound for bound in bounds if shortest <= bound < longest}), longest]
    found = []
    for low, high in zip(edges, edges[1:]):
        inside = np.flatnonzero((lengths > low) & (lengths <= high))
        if len(inside):
            found.append(Bucket(f"{low + 1}–{high}" if low + 1 < high else str(high), inside))
    return found
