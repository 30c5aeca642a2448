"""Reads trainings.toml: the trainings of each group, the command of each, and where its run and its record are."""

import itertools
import os
import pathlib
import shlex
import tomllib
from typing import NamedTuple

from record import PROJECT

TABLE = PROJECT / "examples/trainings.toml"
RESULTS = PROJECT / "examples/results"
RUNS = PROJECT / "runs/trainings"
HOW = "OMP_NUM_THREADS", "GPUS", "PROCESSES"  # variables that do not change what is trained


class Training(NamedTuple):
    name: str
    row: str  # the name without the seed
    group: str
    published: str  # key of the published figure
    recipe: str
    variables: dict[str, str]
    arguments: list[str]
    mirror: str  # path within the folder of --mirror

    @property
    def run(self) -> pathlib.Path:
        return RUNS / self.name

    @property
    def record(self) -> pathlib.Path:
        return RESULTS / f"{self.name}.json"

    def command(self, mirror: pathlib.Path | None) -> tuple[dict[str, str], list[str]]:
        """The variables and words of the command."""
        given = {name: os.environ[name] for name in HOW if name in os.environ}
        variables = {"OMP_NUM_THREADS": "1", "GPUS": "0", **given, **self.variables}
        if mirror is not None and self.mirror:
            variables["MIRROR"] = str(mirror.resolve() / self.mirror)
        variables["OUTPUT"] = str(self.run.relative_to(PROJECT))
        return variables, [f"examples/{self.recipe}", *self.arguments]


def read_table() -> dict[str, dict]:
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return {name: table.get(group.get("like"), {}) | group for name, group in table.items()}


def trainings_of(group: str, table: dict[str, dict]) -> list[Training]:
    """In the order of the table, but seed by seed, so that an early end leaves complete seeds."""
    by_seed, shared = [], table[group]
    for row in itertools.chain.from_iterable(map(spelled_out, shared["rows"])):
        variables = shared.get("variables", {}) | row.get("variables", {})
        arguments = shlex.split(f"{shared.get('arguments', '')} {row.get('arguments', '')}")
        row = shared | row
        given = {name: [value] if isinstance(value, str) else value for name, value in variables.items()}
        for values in itertools.product(*given.values()):
            variables = dict(zip(given, values))
            key = ".".join(value for name, value in variables.items() if len(given[name]) > 1)
            for family, seed in itertools.product(row["families"], row["seeds"]):
                label = ".".join(filter(None, [row.get("group", group), key, family, row.get("word")]))
                everything = variables | {"FAMILY": family, "SEED": str(seed)}
                mirror = row.get("mirror", "").format(**everything)
                training = Training(f"{label}.{seed}", label, group, key, row["recipe"], everything, arguments, mirror)
                by_seed.append((seed, training))
    return [training for _, training in sorted(by_seed, key=lambda pair: pair[0])]


def spelled_out(row: dict) -> list[dict]:
    """A row for each combination of its `choices`, whose words and arguments follow those of the row."""
    combinations = itertools.product(*(choice.items() for choice in row.get("choices", [])))
    return [
        row
        | {
            "word": ".".join(filter(None, [row.get("word"), *(word for word, _ in chosen)])),
            "arguments": " ".join([row.get("arguments", ""), *(arguments for _, arguments in chosen)]),
        }
        for chosen in combinations
    ]
