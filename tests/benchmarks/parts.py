"""Where time goes: seconds of an action by the functions in which it is."""

import contextlib
import functools
import time
from collections.abc import Callable
from unittest import mock

import torch

REST = "everything else"


def clock() -> float:
    """Seconds, when a GPU has done what it was given: else its work would count for the part that waits for it."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds_by_part(action: Callable[[], object], parts: dict[str, list[tuple[object, str]]]) -> dict[str, float]:
    """Seconds that `action` spends in each part, given as (class or module, name of a function of it).

    Where parts call each other, time counts for the innermost one.
    """
    seconds = dict.fromkeys([*parts, REST], 0.0)
    inside, since = [REST], [clock()]

    def count() -> None:
        now = clock()
        seconds[inside[-1]] += now - since[0]
        since[0] = now

    def timed(part: str, function: Callable) -> Callable:
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            count()
            inside.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                count()
                inside.pop()

        return wrapper

    with contextlib.ExitStack() as stack:
        # each function once, where several classes of a model inherit it
        for part, functions in parts.items():
            for owner, name in dict.fromkeys(functions):
                stack.enter_context(mock.patch.object(owner, name, timed(part, getattr(owner, name))))
        since[0] = clock()
        action()
        count()
    return seconds


def print_shares(title: str, seconds: dict[str, dict[str, float]]) -> None:
    """A table: milliseconds of each part (row) for each model (column)."""
    print(f"{title}, ms")
    print(f"  {'':24}" + "".join(f"{name:>32}" for name in seconds))
    for part in next(iter(seconds.values())):
        print(f"  {part:24}" + "".join(f"{1e3 * each[part]:32.0f}" for each in seconds.values()))


def classes_with(module, *kinds: type) -> list[tuple[type, str]]:
    """(class, "forward") of every part of `module` that is one of these kinds."""
    return [(type(part), "forward") for part in module.modules() if isinstance(part, kinds)]
