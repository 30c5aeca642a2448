"""The tables that are made from records: pages are as new as these, and what a row is."""

import functools
import itertools
import json
import pathlib
import re
import subprocess
import sys

import pytest
import tables

from user_dir.errors import InputError

from support import PROJECT, one_line

GROUP = {"scores": ["BLEU", "chrF", "sign test", tables.REACHED], "published": {"de": "41.02"}, "recipe": "a.sh"}
GROUP |= {"families": ["one", "other"], "seeds": [1, 2], "variables": {"UPDATES": "5"}}
SLOW = {"families": ["one"], "seeds": [1], "variables": {"UPDATES": "9"}, "arguments": "--lr 1", "word": "slow"}
GROUP |= {"arguments": "--warmup-updates 2", "rows": [{"variables": {"TARGET": ["de", "fr"]}}, SLOW]}


def test_no_page_is_older_than_its_records():
    done = subprocess.run([sys.executable, PROJECT / "examples/tables.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_folders_of_a_mirror_are_those_of_the_page():
    groups = tables.read_table()
    trainings = (training for group in groups for training in tables.trainings_of(group, groups))
    page = one_line(PROJECT / "examples/README.md")
    (named,) = re.findall(r"has one folder for each corpus: (.*?)\. ", page)
    assert {*re.findall("`(.*?)`", named)} == {training.mirror for training in trainings} - {""}


@pytest.mark.parametrize("recipe, group", [("multi30k_published", "multi30k"), ("sequences", "sequences")])
def test_the_seeds_of_a_recipe_are_those_of_the_page(recipe, group):
    rows = tables.records_of(group, tables.read_table(), tables.RESULTS).values()
    fewest, most = ("no one two three four five".split()[of(map(len, rows))] for of in (min, max))
    seeds = fewest if fewest == most else f"{fewest} to {most}"
    page = (PROJECT / "examples/README.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| \[{recipe}\.sh\].* {seeds} seeds \|$", page, re.MULTILINE)


def test_every_record_is_of_a_training_in_the_table():
    groups = tables.read_table()
    known = {training.record for group in groups for training in tables.trainings_of(group, groups)}
    assert {*tables.RESULTS.glob("*.json")} <= known


@pytest.mark.parametrize(
    "groups, words",
    [("sequences",) * 2, ("weighted", "`weighted`"), ("quickstart", "quickstart"), ("ted bpe_dropout", "TED")],
)
def test_the_hours_of_groups_are_those_of_the_page(groups, words):
    """Within an hour, so that a record more does not change the page."""
    files = (file for group in groups.split() for file in tables.RESULTS.glob(f"{group}.*"))
    seconds = (json.loads(file.read_text(encoding="utf-8"))["seconds"] for file in files)
    page = one_line(tables.RESULTS / "README.md")
    assert int(re.search(rf"{words} (\d+)", page)[1]) == pytest.approx(sum(seconds) / 3600, abs=1)


def test_the_hours_of_all_records_are_those_of_the_page():
    """Those of cores, and once: in Galician `long` continued `with`, and its record has the seconds of both."""
    seconds = 0
    for file in tables.RESULTS.glob("*.json"):
        record = json.loads(file.read_text(encoding="utf-8"))
        if "gpus" not in record["machine"] and not re.match(r"bpe_dropout\.gl\..*\.with\.", file.name):
            seconds += record["seconds"] * (2 if "PROCESSES=2" in record["command"] else 1)
    page = one_line(tables.RESULTS / "README.md")
    assert int(re.search(r"took about (\d+) hours", page)[1]) == pytest.approx(seconds / 3600, abs=2)


def test_a_name_is_of_one_command_and_a_command_of_one_name():
    """Else a row would show another training's record, or a training would be done twice."""
    groups, commands = tables.read_table(), {}
    for training in itertools.chain.from_iterable(tables.trainings_of(group, groups) for group in groups):
        command = training.recipe, *sorted(training.variables.items()), *training.arguments
        assert commands.setdefault(training.name, command) == command
    assert len({*commands.values()}) == len(commands)


def test_the_matrix_of_a_group():
    found = tables.trainings_of("group", {"group": GROUP})
    assert len({training.name for training in found}) == len(found) == 9
    assert found[0].name == "group.de.one.1" and [training.name[-1] for training in found] == [*"11111", *"2222"]
    assert found[0].variables == {"FAMILY": "one", "SEED": "1", "TARGET": "de", "UPDATES": "5"}
    (slow,) = [training for training in found if "--lr" in training.arguments]
    assert slow.name == "group.one.slow.1" and slow.variables == {"FAMILY": "one", "SEED": "1", "UPDATES": "9"}
    assert slow.arguments == ["--warmup-updates", "2", "--lr", "1"]
    found = tables.trainings_of("group", {"group": {**GROUP, "families": ["one"], "seeds": [10, 9], "rows": [{}]}})
    assert [training.name for training in found] == ["group.one.9", "group.one.10"]


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ("rows = [", "trainings.toml: Invalid value"),
        ("argument = '--new'", r"\[own\] has argument = '--new'"),
        ("seeds = '12'", r"\[own\] has seeds = '12'"),
        ("rows = [{ words = 'new' }]", r"\[own\] has words = 'new'"),
        ("like = 'bas'", r"\[own\] has like = 'bas'"),
        ("like = 'base'\n[own.rows]\nword = 'x'", r"\[own\] has rows = \{'word': 'x'\}"),  # for [[own.rows]]
        ("seeds = [1]", r"\[own\] has no rows"),
        ("rows = [{ recipe = 'b.sh' }]", r"\[own\] has no families"),
        ("like = 'base'\narguments = \"'\"", r"\[own\]: No closing quotation"),
        ("like = 'base'\nrows = [{}, {arguments = '--new'}]", r"\[own\] has own.one.1 twice: give a row another word"),
        ("like = 'base'\nseeds = [1, 2, 2]", r"\[own\] has own.one.2 twice"),
    ],
)
def test_a_mistake_in_the_table_is_one_line(tmp_path, monkeypatch, entries, words):
    """Else something else would be trained than was meant."""
    base = "[base]\nrecipe = 'a.sh'\nfamilies = ['one']\nseeds = [1]\nrows = [{}]\n"
    monkeypatch.setattr("trainings.TABLE", tmp_path / "trainings.toml")
    (tmp_path / "trainings.toml").write_text(f"{base}[own]\n{entries}\n")
    with pytest.raises(InputError, match=words):
        tables.trainings_of("own", tables.read_table())


def test_a_group_like_one_that_is_like_another(tmp_path, monkeypatch):
    """Numbers and paths are variables, too; the front page stays the first group's."""
    monkeypatch.setattr("trainings.TABLE", tmp_path / "trainings.toml")
    base = "[base]\nrecipe = 'a.sh'\nfamilies = ['one']\nseeds = [1]\nrows = [{}]\nfront_page = { x = '{family}' }\n"
    own = "[own]\nlike = 'wide'\nvariables = { CORPUS = ['a/b', 'c'], UPDATES = 9 }\n"
    (tmp_path / "trainings.toml").write_text(f"{base}[wide]\nlike = 'base'\narguments = '--dim 9'\n{own}")
    groups = tables.read_table()
    first, second = tables.trainings_of("own", groups)
    assert (first.name, second.name, second.published) == ("own.a_b.one.1", "own.c.one.1", "c")
    assert first.arguments == ["--dim", "9"] and not groups["own"]["front_page"]
    assert first.variables == {"CORPUS": "a/b", "UPDATES": "9", "FAMILY": "one", "SEED": "1"}


def test_a_mirror_is_for_the_groups_that_have_one(tmp_path, monkeypatch):
    """The quickstart would look there for its own corpus, and own-data.sh refuses it."""
    monkeypatch.chdir(tmp_path)  # recipes run in the project
    for group, folder in (({**GROUP, "mirror": "{FAMILY}"}, "one"), (GROUP, None)):
        variables, _ = tables.trainings_of("group", {"group": group})[0].command(pathlib.Path())
        assert variables.get("MIRROR") == (folder and str(tmp_path / folder)) and variables["GPUS"] == "0"
    monkeypatch.setenv("GPUS", "1")
    assert tables.trainings_of("group", {"group": GROUP})[0].command(None)[0]["GPUS"] == "1"
    own = {**GROUP, "variables": {"GPUS": "2"}}  # the group's own count
    assert tables.trainings_of("group", {"group": own})[0].command(None)[0]["GPUS"] == "2"


def test_a_reader_that_goes_away_ends_the_list_of_trainings():
    words = [sys.executable, "-u", PROJECT / "examples/train.py", "sequences", "--list"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as listed:
        listed.stdout.close()
        assert listed.stderr.read() == b"" and listed.wait() == 141


def test_a_row_with_one_of_the_groups_values_has_its_published_figure():
    rows = [{}, {"variables": {"TARGET": "de"}, "word": "slow"}]
    found = tables.trainings_of("group", {"group": {**GROUP, "variables": {"TARGET": ["de", "fr"]}, "rows": rows}})
    (slow,) = [training for training in found if training.name == "group.de.one.slow.1"]
    assert slow.published == "de"


def test_a_row_with_choices_has_every_combination():
    choices = [{"": "", "wide": "--dim 9"}, {"fast": "--lr 2", "slow": "--lr 1"}]
    row = {"families": ["one"], "seeds": [1], "word": "pre", "arguments": "--pre", "choices": choices}
    found = tables.trainings_of("group", {"group": {**GROUP, "rows": [row]}})
    words = ("pre.fast", "pre.slow", "pre.wide.fast", "pre.wide.slow")
    assert [training.name for training in found] == [f"group.one.{word}.1" for word in words]
    assert found[3].arguments == ["--warmup-updates", "2", "--pre", "--dim", "9", "--lr", "1"]


@pytest.fixture
def page(monkeypatch, tmp_path):
    """A page with an old table, and beside it results/ with the records of its rows; tables.outdated reads them."""
    (tmp_path / "examples/results").mkdir(parents=True)
    page = tmp_path / "examples/page.md"
    page.write_text("before\n<!-- table group -->\nold\n<!-- end -->\nafter\n")
    scored = {"de.one": (40.0, 42.0), "de.other": (39.0, 41.5)}
    scored |= dict.fromkeys(("fr.one", "fr.other"), ("none", "none"))
    scored["one.slow"] = (43.0, 44.0)  # a row without a published figure, of the data of de
    for row, seed in itertools.product(scored, (1, 2)):
        scores = {"BLEU": {"score": scored[row][seed - 1]}, "sign test": {"score": f"p 0.{seed}"}}
        validation = [{"update": 10, "loss": 3.0 if row.endswith("one") else 4.0}]
        record = {"seed": seed, "updates": 1000 * seed, "scores": scores, "validation": validation}
        record["corpus"] = {"sha256": "fr" if row.startswith("fr") else "de"}
        page.with_name("results").joinpath(f"group.{row}.{seed}.json").write_text(json.dumps(record))
    monkeypatch.setattr(tables, "read_table", lambda: {"group": GROUP})
    monkeypatch.setattr(tables, "outdated", functools.partial(tables.outdated, tmp_path))
    return page


def test_the_rows_of_a_table(page):
    ((found, text),) = tables.outdated().items()
    assert found == page and text.startswith("before\n") and text.endswith("<!-- end -->\nafter\n")
    assert "\n| `de.one` | 2 | 1,000–2,000 | 41.00 ± 1.41 |  | p 0.1; p 0.2 | 10; 10 | 41.02 |\n" in text
    # the differences are −1 and −0.5: t = −3 with one degree of freedom, p = 1 − 2/π · atan(3), 3.18 = 12.71 · 0.25
    other = "40.25 ± 1.77 | −0.75 ± 3.18, 0.205 | p 0.1; p 0.2 | never; never | 41.02 |"
    assert f"\n| `de.other` | 2 | 1,000–2,000 | {other}\n" in text
    assert "\n| `fr.other` | 2 | 1,000–2,000 | none |  | p 0.1; p 0.2 | never; never |  |\n" in text
    assert "\n| `one.slow` | 1 | 1,000 | 43.00 | +3.00 | p 0.1 | never |  |\n" in text


def test_a_page_is_older_when_a_record_is_added(page):
    page.write_text(tables.outdated()[page])
    assert not tables.outdated()
    record, kept = page.parent / "results/group.de.one.1.json", page.parent / "results/kept"
    record.rename(kept)
    ((_, without),) = tables.outdated().items()  # and still the first row
    assert "\n| `de.one` | 1 | 2,000 | 42.00 |  | p 0.2 | 10 | 41.02 |\n| `de.other` | 2 |" in without
    kept.rename(record)
    assert not tables.outdated()


@pytest.mark.parametrize(
    "content, words",
    [
        ('{"seed": 1, "upd', "is not the record"),
        ('{"scores": {"BLEU": 3}}', "not an object"),
        ("{}", "lacks seed, updates"),
    ],
)
def test_a_damaged_record_is_named_and_no_page_is_written(page, monkeypatch, content, words):
    before = page.read_text()
    (page.parent / "results/group.de.one.1.json").write_text(content)
    monkeypatch.setattr(sys, "argv", ["tables.py"])
    with pytest.raises(SystemExit, match=f"tables.py: .*group.de.one.1.json .*{words}"):
        tables.main()
    assert page.read_text() == before


def test_outdated_pages_are_written_or_only_named(monkeypatch, tmp_path):
    monkeypatch.setattr(tables, "read_table", lambda: {"group": GROUP})
    monkeypatch.setattr(tables, "PROJECT", tmp_path)
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(tables, "outdated", functools.partial(tables.outdated, tmp_path))
    pages = [tmp_path / name for name in ("README.md", "examples/page.md", "tests/benchmarks/README.md")]
    for page in pages:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("<!-- table group -->\nold\n<!-- end -->\n")
    monkeypatch.setattr(sys, "argv", ["tables.py", "--check"])
    with pytest.raises(SystemExit, match="README.md, examples/page.md, tests/benchmarks/README.md: older than"):
        tables.main()
    assert all("\nold\n" in page.read_text() for page in pages)
    monkeypatch.setattr(sys, "argv", ["tables.py"])
    tables.main()
    assert all(tables.EMPTY in page.read_text() for page in pages)


def test_the_table_of_families(tmp_path):
    groups = {
        "a": {**GROUP, "families": ["transformer", "relative_transformer"], "scores": ["loss", "BLEU"]},
        "b": {**GROUP, "scores": ["BLEU"], "front_page": {"nobody trained it": "de.{family}"}},
    }
    groups["a"]["front_page"] = {"German": "de.{family}", "French": "fr.{family}"}
    for name, bleu in (("de.transformer.1", 40.0), ("de.transformer.2", 42.0), ("fr.relative_transformer.1", 50.5)):
        record = {"seed": 1, "updates": 9, "scores": {"BLEU": {"score": bleu}, "loss": {"score": 9.0}}}
        (tmp_path / f"a.{name}.json").write_text(json.dumps(record))
    page = "<!-- table families -->\n<!-- end -->\n"
    assert tables.EMPTY in tables.with_tables(page, groups, tmp_path / "none")  # as in the other tables
    assert tables.with_tables(page, groups, tmp_path).splitlines()[1:-1] == [
        "| family | German | French |",
        "| --- | ---: | ---: |",
        "| `transformer` | 41.00 ± 1.41 |  |",
        "| `relative_transformer` |  | 50.50 |",
    ]


def test_a_page_that_names_another_table_is_refused():
    with pytest.raises(KeyError, match="nothing"):
        tables.with_tables("<!-- table nothing -->\n<!-- end -->\n", {"group": GROUP})


def test_a_row_has_one_corpus():
    one, other = ({"row": "group.de.one", "corpus": {"sha256": digest}} for digest in ("a", "b"))
    assert tables.data_of([one, one]) == "a"
    with pytest.raises(InputError, match="group.de.one are of different data: remove one, and train again"):
        tables.data_of([one, other])


def test_the_difference_of_two_rows(tmp_path, monkeypatch, capsys):
    """In each score that is a number, over the seeds of both; not of rows that begin with the same letters."""
    scored = {"a.one": (3.0, 4.0, 9.0), "a.one.slow": (7.0, 7.0), "a.other": (1.0, 3.0), "b.one": (1.0,)}
    for row, values in scored.items():
        for seed, value in enumerate(values, 1):
            scores = {"sign test": {"score": "p 0.1"}, "BLEU": {"score": value}}
            validation = [{"update": 1, "loss": 4 - value / 8}]
            record = {"seed": seed, "updates": 1, "validation": validation, "scores": scores}
            record["corpus"] = {"sha256": row[0]}
            (tmp_path / f"{row}.{seed}.json").write_text(json.dumps(record))
    monkeypatch.setattr(tables.differences, "__defaults__", (tmp_path,))
    monkeypatch.setattr(sys, "argv", ["tables.py", "--difference", "a.one", "a.other"])
    tables.main()  # gains of 2 and 1: t = 3 with one degree of freedom, p = 1 − 2/π · atan(3), 6.35 = 12.71 · 0.5
    lines = capsys.readouterr().out.splitlines()[2:]
    assert lines == ["| lowest validation loss | −0.188 ± 0.794, 0.205 |", "| BLEU | +1.50 ± 6.35, 0.205 |"]
    with pytest.raises(InputError, match="a.one and b.one are of different data: name two rows of the same data$"):
        tables.differences("a.one", "b.one", tmp_path)
    with pytest.raises(InputError, match="a.on has no records in .*: name a training of train.py --list, without"):
        tables.differences("a.one", "a.on", tmp_path)
    (tmp_path / "a.one.3.json").rename(tmp_path / "a.late.3.json")
    with pytest.raises(InputError, match="a.late and a.other have no seed in common with a number: name two rows"):
        tables.differences("a.late", "a.other", tmp_path)
    (tmp_path / "a.other.2.json").write_text("{}")
    with pytest.raises(InputError, match="a.other.2.json lacks seed, updates: remove it"):
        tables.differences("a.one", "a.other", tmp_path)


def test_updates_to_the_first_rows_loss():
    """Each seed that both have: 2.0 with seed 1 and 2.5 with seed 2 are the first row's lowest losses."""

    def rows(*losses: tuple[float, ...]) -> list[dict]:
        validations = [[{"update": 500 * n, "loss": loss} for n, loss in enumerate(row, 1)] for row in losses]
        return [{"seed": seed, "validation": validation} for seed, validation in enumerate(validations, 1)]

    base = rows((3.0, 2.0, 2.1), (3.0, 2.6, 2.5))
    assert tables.reached(base, base) == "1,000; 1,500"
    assert tables.reached(rows((2.1, 2.1, 2.0), (2.6, 2.6, 2.6), (1.0,)), base) == "1,500; never"


def test_the_lowest_validation_loss_is_a_score():
    validation = [{"loss": loss} for loss in (float("nan"), 4.3, 4.1, 4.2)]
    record = {"validation": validation, "scores": {"BLEU": {"score": 40.0}}}
    assert tables.score(record, tables.LOSS) == 4.1 and tables.score(record, "BLEU") == 40.0
    assert tables.score(record, "sign test") == ""  # trained without the published output


def test_the_table_of_timed_commands(tmp_path):
    assert tables.commands_table(tmp_path) == tables.EMPTY
    record = {"family": "one", "autocast": "off", "threads": 2, "machine": {"cpu": "a CPU", "cores": 2}}
    record["figures"] = {"train": [[100.0, 150.0], [200.0, 200.0], [100.0, 200.0]], "translate": [[9.0, 3.0]]}
    (tmp_path / "cpu.json").write_text(json.dumps(record))
    (tmp_path / "gpu.json").write_text(json.dumps({**record, "autocast": "bf16", "machine": {"gpus": ["a GPU"]}}))
    lines = tables.commands_table(tmp_path).splitlines()
    assert lines[2] == "| a CPU, 2 threads, float32 | `one` | train, words/s | 100 | 200 | 1.50 (1.00–2.00) |"
    assert lines[3].endswith("| translate, seconds | 9.0 | 3.0 | 3.00 (3.00–3.00) |")
    assert lines[4].startswith("| a GPU, 2 threads, bf16 | `one` | train") and len(lines) == 6
    record["machine"]["instructions"] = "avx2"
    (tmp_path / "cpu.json").write_text(json.dumps(record))
    assert tables.commands_table(tmp_path).splitlines()[2].startswith("| a CPU avx2, 2 threads, float32 | `one`")
