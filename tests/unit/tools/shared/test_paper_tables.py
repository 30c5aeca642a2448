"""The papers' tables: each row is a model that can be built, and the shell gets what it types."""

import pytest

from user_dir.tools.shared import paper_tables
from user_dir.tools.shared.paper_tables import SIZES, TABLES, option_words

from support import training_options

ROWS = [(name, row) for name, rows in TABLES.items() for row in rows]


@pytest.mark.parametrize("size", SIZES)
def test_options_of_every_row_are_fairseq_trains(size):
    for _, row in ROWS:
        change = row.change(SIZES[size])
        words = ["data", "--arch", f"{row.family}_tiny", "--criterion", "label_smoothed_cross_entropy"]
        args = training_options(*words, *option_words(change))
        rates = {name: [float(value)] for name, value in change.items() if name == "lr"}
        assert {name: getattr(args, name) for name in change} == change | rates
        assert args.encoder_embed_dim % args.encoder_attention_heads == 0


def test_no_two_rows_are_the_same():
    for name, rows in TABLES.items():
        changes = [(row.family, row.change(SIZES["base"])) for row in rows]
        assert all(changes.count(change) == 1 for change in changes), name


# The papers' numbers, written down a second time: BLEU on newstest2013 and millions of parameters.
# Vaswani et al. 2017, Table 3.
VASWANI = """
    base 25.8 65
    A.heads-1 24.9 -  A.heads-4 25.5 -  A.heads-16 25.8 -  A.heads-32 25.4 -
    B.key-16 25.1 58  B.key-32 25.4 60
    C.layers-2 23.7 36  C.layers-4 25.3 50  C.layers-8 25.5 80
    C.width-256 24.5 28  C.width-1024 26.0 168  C.ffn-1024 25.4 53  C.ffn-4096 26.2 90
    D.dropout-0 24.6 -  D.dropout-0.1 25.8 -  D.dropout-0.2 25.5 -  D.smoothing-0 25.3 -  D.smoothing-0.2 25.7 -
    E.learned 25.7 -
    big 26.4 213
"""
# Shaw et al. 2018, Tables 2 and 3.
SHAW_DISTANCE = "k-0 12.5 - k-1 25.5 - k-2 25.8 - k-4 25.9 - k-16 25.8 - k-64 25.9 - k-256 25.8 -"
SHAW_TERMS = "keys_and_values 25.8 - keys 25.8 - values 25.3 - neither 12.5 -"
# Ahmed et al. 2017, section 4.
AHMED_DEPTH = """
    vaswani.layers-2 23.7 36  weighted.layers-2 24.8 36
    vaswani.layers-4 25.3 50  weighted.layers-4 26.2 50
    vaswani.layers-6 25.8 65  weighted.layers-6 26.5 65
    vaswani.layers-8 25.5 80  weighted.layers-8 25.6 80
    weighted.big 27.2 213
"""
PUBLISHED = {"vaswani": VASWANI, "shaw-distance": SHAW_DISTANCE, "shaw-terms": SHAW_TERMS, "ahmed-depth": AHMED_DEPTH}


@pytest.mark.parametrize("table", TABLES)
def test_published_numbers(table):
    words = iter(PUBLISHED.get(table, "").split())
    published = {(name, float(bleu), None if count == "-" else int(count)) for name, bleu, count in zip(*[words] * 3)}
    assert {(row.name, row.bleu, row.millions) for row in TABLES[table] if row.bleu or row.millions} == published


def test_rows_change_what_the_papers_changed():
    """Vaswani et al. 2017, Table 3; Ahmed et al. 2017, 4.1: dropout 0.3 of eight layers, but not in the quickstart."""
    for _, row in ROWS:  # a number at the end of a name is the value of an option
        if (number := row.name.rpartition("-")[2])[0].isdigit():
            assert float(number) in row.change(SIZES["base"]).values(), row

    def changes(size):
        names = "vaswani", "ahmed-depth", "ahmed-weights"
        return {row.name: row.change(SIZES[size]) for name in names for row in TABLES[name]}

    eight = {"encoder_layers": 8, "decoder_layers": 8}
    sizes = {"embed_dim": 1024, "ffn_embed_dim": 4096, "attention_heads": 16}
    wide = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()}
    for row, expected in {
        "A.heads-1": {"encoder_attention_heads": 1, "decoder_attention_heads": 1},
        "A.heads-32": {"encoder_attention_heads": 32, "decoder_attention_heads": 32},
        "B.key-16": {"attention_key_dim": 16},
        "C.layers-8": eight,
        "C.width-256": {"encoder_embed_dim": 256, "decoder_embed_dim": 256, "lr": "0.000988"},
        "C.ffn-4096": {"encoder_ffn_embed_dim": 4096, "decoder_ffn_embed_dim": 4096},
        "D.dropout-0.2": {"dropout": 0.2},
        "D.smoothing-0": {"label_smoothing": 0.0},
        "E.learned": {"encoder_learned_pos": True, "decoder_learned_pos": True},
        "big": {**wide, "dropout": 0.3},
        "top-half": {"top_branches": 4},
        "weighted.layers-8": {**eight, "dropout": 0.3, "attention_dropout": 0.3},
    }.items():
        assert changes("base")[row] == expected, row
    assert changes("quickstart")["weighted.layers-8"] == changes("quickstart")["C.layers-8"]
    assert "lr" not in changes("quickstart")["C.width-256"]


def test_lines_for_the_shell(printed):
    lines = printed(paper_tables.main, "shaw-distance", "quickstart").splitlines()
    assert lines[1] == "k-0\trelative_transformer\t--relative-distance 0\t12.5"
    assert printed(paper_tables.main).split() == list(TABLES)
    with pytest.raises(SystemExit, match="nothing: the tables are vaswani, "):
        paper_tables.main(["nothing"])
