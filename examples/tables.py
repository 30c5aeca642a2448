"""Writes the pages' tables of records, between a line <!-- table GROUP --> and a line <!-- end -->.

    python examples/tables.py            # all pages
    python examples/tables.py --check    # writes nothing, and fails if a page is older than its records
    python examples/tables.py --difference multi30k.fr.weighted_transformer multi30k.fr.vaswani_transformer

A row has the mean over seeds ± the sample standard deviation; scores that are not numbers are shown for each seed
where they differ. Besides the scores of a record there are the lowest validation loss, and the number of updates after
which it was as low as the first row's lowest with the same seed. A difference is from the first row with the same data,
over the seeds that both have; ± 95% is its 95% confidence interval and p its p-value, both by a paired t-test over
those seeds. The table "families" has a row for each family, and a column for each `front_page` entry of a group, with
the last of its scores. The table "commands" has the records of tests/benchmarks/commands.py.
"""

import math
import pathlib
import re
import statistics
import sys

from trainings import PROJECT, RESULTS, read_table, records_of_row, trainings_of

from user_dir.errors import InputError
from user_dir.families import FAMILIES
from user_dir.files import write_text
from user_dir.tools.comparison.report import mean, p_value
from user_dir.tools.comparison.significance import paired
from user_dir.tools.shared.command import exit_in_one_line, new_parser
from user_dir.tools.shared.command import table as markdown
from user_dir.tools.shared.records import checksum_of_data, read_record

BLOCK = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
LOSS = "lowest validation loss"
REACHED = "updates to the first row's loss"  # the lowest one
SPEEDS = "tests/benchmarks/results"
DIFFERENCE = "difference ± 95%, p"
EMPTY = "No training of this table has ended yet.\n"


def table(group: str, groups: dict[str, dict], results: pathlib.Path) -> str:
    """The Markdown table of a group, with one row for all seeds of a training that have records."""
    described = groups[group]
    records, published = records_of(group, groups, results), described.get("published", {})
    if not records:
        return EMPTY
    every = [record for seeds in records.values() for record in seeds]
    found = {name: [value for record in every if (value := score(record, name)) != ""] for name in described["scores"]}
    names = [name for name, values in found.items() if values or name == REACHED]
    numbers = {name for name in names if found[name] and isinstance(found[name][0], float)}
    compared = [column for name in names for column in ([name, DIFFERENCE] if name in numbers else [name])]
    head, lines = ["training", "seeds", "updates", *compared, *["published"] * bool(published)], []
    keys = [key for _, key in records]  # rows with the same published figure stand together
    for (row, key), seeds in sorted(records.items(), key=lambda item: keys.index(item[0][1])):
        first = next(others for others in records.values() if data_of(others) == data_of(seeds))
        updates = sorted({record["updates"] for record in seeds})
        shown = f"{updates[0]:,}" + (f"–{updates[-1]:,}" if len(updates) > 1 else "")
        line = [f"`{row.removeprefix(group + '.')}`", str(len(seeds)), shown]
        for name in names:
            values, digits = [score(record, name) for record in seeds], 3 if name == LOSS else 2
            line.append(reached(seeds, first) if name == REACHED else over_seeds(values, digits))
            if name in numbers:
                line.append("" if seeds is first else difference(name, seeds, first, digits))
        lines.append(line + [published.get(key, "")] * bool(published))
    return markdown(head, lines) + "\n"


def records_of(group: str, groups: dict[str, dict], results: pathlib.Path) -> dict[tuple[str, str], list[dict]]:
    """The records of a group by row and key of the published figure, those of all seeds together."""
    records: dict[tuple[str, str], list[dict]] = {}
    for training in trainings_of(group, groups):
        # A row whose first seed has no record stays in its place: others are compared with the first row.
        file, seeds = results / training.record.name, records.setdefault((training.row, training.published), [])
        if file.exists():
            seeds.append(read_seed(file))
    return {row: seeds for row, seeds in records.items() if seeds}


def read_seed(file: pathlib.Path) -> dict:
    """The record of one seed of a row.

    Raises:
        InputError: as read_record; if it does not say which seed, or after how many updates
    """
    record = read_record(file)
    if missing := {"seed", "updates"} - record.keys():
        raise InputError(f"{file} lacks {', '.join(sorted(missing))}: remove it, and train again")
    return record


def families_table(groups: dict[str, dict], results: pathlib.Path) -> str:
    """The Markdown table with a row for each family, fairseq's own first, and a column for each `front_page`."""
    names = ["transformer", *FAMILIES]
    columns = [["family", *(f"`{name}`" for name in names)]]
    for group, described in groups.items():
        if "front_page" not in described:
            continue
        records = {row: seeds for (row, _), seeds in records_of(group, groups, results).items()}
        for heading, row in described["front_page"].items():
            cells = [records.get(f"{group}.{row.format(family=name)}", []) for name in names]
            values = [[score(record, described["scores"][-1]) for record in cell] for cell in cells]
            if any(values):
                columns.append([heading, *(over_seeds(cell, 2) if cell else "" for cell in values)])
    if len(columns) == 1:
        return EMPTY
    head, *lines = (line for line in zip(*columns) if any(line[1:]))
    return markdown(list(head), lines) + "\n"


def command_rows(record: dict) -> list[list[str]]:
    """For each command the medians of fairseq's side and ours, and of their ratio with its extremes."""
    rows = []
    for name, pairs in record["figures"].items():
        ratios = sorted(ours / stock if name == "train" else stock / ours for stock, ours in pairs)
        stock, ours = (f"{statistics.median(side):,.{0 if name == 'train' else 1}f}" for side in zip(*pairs))
        ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})"
        rows.append([f"{name}, {'words/s' if name == 'train' else 'seconds'}", stock, ours, ratio])
    return rows


def commands_table(results: pathlib.Path) -> str:
    """The Markdown table of the timed commands, one record after the other."""
    lines = []
    for file in sorted(results.glob("*.json")):
        record = read_record(file)
        precision = "float32" if record["autocast"] == "off" else record["autocast"]
        about = record["machine"]
        processor = ", ".join(about.get("gpus") or [f"{about['cpu']} {about.get('instructions', '')}".strip()])
        machine = f"{processor}, {record['threads']} threads, {precision}"
        lines += [[machine, f"`{record['family']}`", *row] for row in command_rows(record)]
    return markdown(["machine", "family", "command", "fairseq's", "ours", "ratio"], lines, 3) + "\n" if lines else EMPTY


def score(record: dict, name: str) -> float | str:
    """The score called `name`, "" if the record has none; LOSS is the lowest validation loss."""
    if name == LOSS:
        return min((loss for step in record["validation"] if (loss := step["loss"]) < math.inf), default="")
    return record["scores"].get(name, {"score": ""})["score"]


def data_of(seeds: list[dict]) -> str | None:
    """The checksum of the data of a row.

    Raises:
        InputError: if the records are of different data
    """
    (data, *others) = {checksum_of_data(record) for record in seeds}
    if others:
        raise InputError(f"the records of {seeds[0].get('row')} are of different data: remove one, and train again")
    return data


def difference(name: str, ours: list[dict], theirs: list[dict], digits: int) -> str:
    """Ours minus theirs in the score called `name`, over the seeds of both, ± its margin and p if several; or ""."""
    scores = [{record["seed"]: score(record, name) for record in side} for side in (ours, theirs)]
    by_seed = [{seed: value for seed, value in side.items() if isinstance(value, float)} for side in scores]
    common = by_seed[0].keys() & by_seed[1].keys()
    if not common:
        return ""
    one, other = ({seed: side[seed] for seed in common} for side in by_seed)
    gain = f"{statistics.mean(one.values()) - statistics.mean(other.values()):+.{digits}f}".replace("-", "−")
    test = paired(one, other)
    return f"{gain} ± {test.margin:.{digits}f}, {p_value(test.p)}" if test else gain


def differences(row: str, other: str, results: pathlib.Path = RESULTS) -> str:
    """The Markdown table of a row's differences from another of the same data, in all their scores that are numbers.

    Raises:
        InputError: if a row has no records, or they are of different data, or have no seed in common
    """
    sides = []
    for name in (row, other):
        if not (files := records_of_row(name, results)):
            raise InputError(
                f"{name} has no records in {results}: name a training of train.py --list, without its seed"
            )
        sides.append([*map(read_seed, files)])
    ours, theirs = sides
    if data_of(ours) != data_of(theirs):
        raise InputError(f"{row} and {other} are of different data: name two rows of the same data")
    lines = [[name, difference(name, ours, theirs, 3 if name == LOSS else 2)] for name in (LOSS, *ours[0]["scores"])]
    if not (lines := [line for line in lines if line[1]]):
        raise InputError(f"{row} and {other} have no seed in common with a number: name two rows that have one")
    return markdown(["score", DIFFERENCE], lines)


def reached(ours: list[dict], theirs: list[dict]) -> str:
    """After how many updates each of ours had a loss as low as the lowest of theirs with the same seed, or "never"."""
    lowest, updates = {record["seed"]: score(record, LOSS) for record in theirs}, []
    for record in ours:
        if record["validation"] and lowest.get(record["seed"]):
            low = (step["update"] for step in record["validation"] if step["loss"] <= lowest[record["seed"]])
            updates.append(next((f"{update:,}" for update in low), "never"))
    return "; ".join(updates)


def over_seeds(values: list, digits: int) -> str:
    """The mean of those scores that are not "" with the standard deviation, or the texts."""
    values = [value for value in values if value != ""]
    if not all(isinstance(value, float) for value in values):
        return "; ".join(map(str, values if len({*values}) > 1 else values[:1]))
    return mean(values, digits) if values else ""


def with_tables(page: str, groups: dict[str, dict], results: pathlib.Path = RESULTS) -> str:
    """The page with the tables of its records.

    Raises:
        KeyError: if it names a group that is not in trainings.toml
    """

    def new(name: str) -> str:
        if name == "commands":
            return commands_table(PROJECT / SPEEDS)
        return families_table(groups, results) if name == "families" else table(name, groups, results)

    return BLOCK.sub(lambda match: match[1] + new(match[2]) + match[3], page)


def outdated(project: pathlib.Path = PROJECT) -> dict[pathlib.Path, str]:
    """The pages that are older than their records, with their new text."""
    groups, pages = read_table(), {}
    for page in [page for folder in (".", "examples", "tests/benchmarks") for page in project.glob(f"{folder}/*.md")]:
        text = page.read_text(encoding="utf-8")
        if (made := with_tables(text, groups, project / RESULTS.relative_to(PROJECT))) != text:
            pages[page] = made
    return pages


@exit_in_one_line("tables.py")
def main() -> None:
    parser = new_parser("tables.py", __doc__)
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--check", action="store_true", help="write nothing; fail if a page is outdated")
    one.add_argument("--difference", nargs=2, metavar=("ROW", "FROM"), help="print one row's difference from another")
    args = parser.parse_args()
    if args.difference:
        print(differences(*args.difference))
        return
    pages = outdated()
    for page, made in pages.items():
        if not args.check:
            write_text(page, made)
            print(page.relative_to(PROJECT))
    if args.check and pages:
        names = ", ".join(str(page.relative_to(PROJECT)) for page in pages)
        sys.exit(f"tables.py: {names}: older than the records; run python examples/tables.py")


if __name__ == "__main__":
    main()
