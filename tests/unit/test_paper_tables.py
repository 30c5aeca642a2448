"""The papers' tables: each row is a model that can be built, and the shell gets what it types."""

import pytest

from user_dir import paper_tables
from user_dir.paper_tables import SIZES, TABLES, option_words

from support import training_options

ROWS = [(name, row) for name, rows in TABLES.items() for row in rows]


@pytest.mark.parametrize("size", SIZES)
def test_options_of_every_row_are_fairseq_trains(size):
    for _, row in ROWS:
        change = row.change(SIZES[size])
        words = ["data", "--arch", f"{row.family}_tiny", "--criterion", "label_smoothed_cross_entropy"]
        args = training_options(*words, *option_words(change))
        assert {name: getattr(args, name) for name in change} == change
        assert args.encoder_embed_dim % args.encoder_attention_heads == 0


def test_no_two_rows_are_the_same():
    for name, rows in TABLES.items():
        changes = [(row.family, row.change(SIZES["base"])) for row in rows]
        assert all(changes.count(change) == 1 for change in changes), name


def test_lines_for_the_shell(capsys):
    paper_tables.main(["shaw-distance", "quickstart"])
    assert capsys.readouterr().out.splitlines()[1] == "k-0\trelative_transformer\t--relative-distance 0\t12.5"
    paper_tables.main([])
    assert capsys.readouterr().out.split() == list(TABLES)
    with pytest.raises(SystemExit, match="nothing: the tables are vaswani, "):
        paper_tables.main(["nothing"])
