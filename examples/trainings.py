"""Reads trainings.toml: the trainings of each group, the command of each, and where its run and its record are."""

import itertools
import os
import pathlib
import shlex
import tomllib
from collections.abc import Iterator
from typing import NamedTuple

from record import PROJECT

from user_dir.errors import InputError

TABLE = PROJECT / "examples/trainings.toml"
RESULTS = PROJECT / "examples/results"
RUNS = PROJECT / "runs/trainings"
# The types of the entries of groups and rows.
ENTRIES = dict.fromkeys(["plan", "like", "group", "recipe", "mirror", "arguments", "word"], str)
ENTRIES |= dict.fromkeys(["rows", "choices", "scores", "families", "seeds"], list)
ENTRIES |= dict.fromkeys(["variables", "published", "front_page"], dict)
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
        given = {name: os.environ[name] for name in HOW if os.environ.get(name)}
        variables = {"OMP_NUM_THREADS": "1", "GPUS": "0", **given, **self.variables}
        if mirror is not None and self.mirror:
            variables["MIRROR"] = str(mirror.resolve() / self.mirror)
        variables["OUTPUT"] = str(self.run.relative_to(PROJECT))
        return variables, [f"examples/{self.recipe}", *self.arguments]


def records_of_row(row: str, results: pathlib.Path) -> list[pathlib.Path]:
    return [file for file in sorted(results.glob("*.json")) if file.stem.rpartition(".")[0] == row]


def read_table() -> dict[str, dict]:
    """The groups by name, each with the entries of the group that it is like, except the front page's.

    Raises:
        InputError: if it is not TOML, or an entry has another name or type than those of `ENTRIES`
    """
    try:
        table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{TABLE}: {error}") from None
    for name, group in table.items():
        of_rows = (row.items() for row in group.get("rows", []))  # after the group's own, among which is `rows`
        for key, value in itertools.chain(group.items(), itertools.chain.from_iterable(of_rows)):
            if not isinstance(value, ENTRIES.get(key, ())) or (key == "like" and value not in table):
                raise InputError(f"{TABLE}: [{name}] has {key} = {value!r}: its head says which entries there are")

    def entries(group: dict) -> dict:
        return entries(table[group["like"]]) | {"front_page": {}} | group if "like" in group else group

    return {name: entries(group) for name, group in table.items()}


def trainings_of(group: str, table: dict[str, dict]) -> list[Training]:
    """In the order of the table, but seed by seed, so that an early end leaves complete seeds.

    Raises:
        InputError: if an entry is missing or malformed, or two trainings have one name
    """
    try:
        found = sorted(in_order(group, table[group]), key=lambda training: int(training.variables["SEED"]))
    except KeyError as error:
        raise InputError(f"{TABLE}: [{group}] has no {error.args[0]}") from None
    except ValueError as error:
        raise InputError(f"{TABLE}: [{group}]: {error}") from None
    names = [training.name for training in found]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{TABLE}: [{group}] has {repeated[0]} twice: give a row another word, or other seeds")
    return found


def in_order(group: str, shared: dict) -> Iterator[Training]:
    for row in itertools.chain.from_iterable(map(spelled_out, shared["rows"])):
        both = [*shared.get("variables", {}).items(), *row.get("variables", {}).items()]
        listed = {name for name, value in both if isinstance(value, list)}  # though a row may have only one of them
        arguments = shlex.split(f"{shared.get('arguments', '')} {row.get('arguments', '')}")
        row = shared | row
        given = {name: [*map(str, value if isinstance(value, list) else [value])] for name, value in both}
        for *values, family, seed in itertools.product(*given.values(), row["families"], row["seeds"]):
            variables = dict(zip(given, values))
            key = ".".join(value for name, value in variables.items() if name in listed)
            label = ".".join(filter(None, [row.get("group", group), key, family, row.get("word")]))
            label = label.replace("/", "_")  # of a path in a variable
            variables |= {"FAMILY": family, "SEED": str(seed)}
            mirror = row.get("mirror", "").format(**variables)
            yield Training(f"{label}.{seed}", label, group, key, row["recipe"], variables, arguments, mirror)


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
