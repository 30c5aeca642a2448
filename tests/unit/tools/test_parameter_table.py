"""python -m user_dir.tools.parameter_table: counts as the papers print them."""

import re

import pytest

from user_dir.families import SIZES
from user_dir.tools import parameter_table as tool
from user_dir.tools.shared.paper_tables import TABLES, Row, given
from user_dir.transformer.architectures import size_options

from support import PROJECT

COUNTED = [row for rows in TABLES.values() for row in rows if row.millions]


@pytest.mark.parametrize("row", COUNTED, ids=lambda row: row.name)
def test_published_counts(row):
    """One vocabulary of 41,000 explains all of them but the big models', which 36,000 does."""
    assert round(tool.count(row, 36_000 if row.big else 41_000) / 1e6) == row.millions


def test_vocabularies_that_fit():
    row = COUNTED[0]
    least, most = tool.vocabularies(row)
    fits = [round(tool.count(row, words) / 1e6) == row.millions for words in (least - 1, least, most, most + 1)]
    assert fits == [False, True, True, False]
    ranges = [tool.vocabularies(row) for row in COUNTED if not row.big]
    assert (max(least for least, _ in ranges), min(most for _, most in ranges)) == (40_932, 41_160)
    page = (PROJECT / "user_dir/tools/README.md").read_text(encoding="utf-8")
    assert "(40,932 to 41,160" in page


@pytest.mark.parametrize("size", SIZES)
def test_counts_of_the_sizes(size):
    """On the page of the models."""
    row = Row(size, "vaswani_transformer", given(**size_options(*SIZES[size])))
    found = tool.count(row, 37_000) / 1e6
    page = (PROJECT / "user_dir/README.md").read_text(encoding="utf-8")
    assert re.search(rf"\| `_{size}` \|.*\| {found:.{0 if found > 10 else 1}f} M \|", page)


def test_extra_parameters_of_branches():
    """κ and α alone: 192 of a base model (Ahmed et al. 2017)."""
    base, weighted = (tool.count(row, 37_000) for row in TABLES["ahmed-depth"][:2])
    assert weighted - base == 192


def test_table(printed, monkeypatch):
    rows = [row for row in TABLES["vaswani"] if row.name in ("base", "big")]
    monkeypatch.setattr(tool, "TABLES", {"vaswani": rows[:1], "ahmed-depth": rows[1:]})
    lines = [line for line in printed(tool.main).splitlines() if line.startswith(("| base |", "| big |"))]
    page = (PROJECT / "user_dir/tools/README.md").read_text(encoding="utf-8")
    assert len(lines) == 2 and all(line in page for line in lines)


def test_a_vocabulary_without_fairseqs_symbols(capsys):
    with pytest.raises(SystemExit):
        tool.main(["--vocabulary", "3"])
    assert "--vocabulary 3: give at least 4" in capsys.readouterr().err


def test_cost(printed, monkeypatch):
    """Six operations for a parameter and token, but for embeddings, and those of the attention weights."""
    row = next(row for row in TABLES["vaswani"] if row.name == "C.layers-2")
    monkeypatch.setattr(tool, "TABLES", {"vaswani": [row], "ahmed-depth": []})
    text = printed(tool.main, "--vocabulary", 1000, "--cost")
    of_parameters = 6 * tool.count(row, 1000) * 25_000 * 100_000
    assert text.splitlines()[0].endswith("| FLOPs of training |")
    assert float(text.split("|")[-2]) == pytest.approx(of_parameters, rel=0.02)


def test_cost_of_the_papers_updates(monkeypatch):
    """Ahmed et al. 2017, section 4: 60,000 and, of big models, 250,000. Sentences of 25 are our choice."""
    monkeypatch.setattr(tool, "build", lambda *_: None)
    monkeypatch.setattr(tool, "operations", lambda model, source, target: source * target)
    rows = [row for row in TABLES["ahmed-depth"] if row.family == "weighted_transformer"]
    assert [tool.cost(row, 1000) / 25 / 25_000 for row in rows] == [60_000] * 4 + [250_000]
