"""Markdown."""

from user_dir.tools.shared.markdown import table


def test_names_end_no_cell():
    found = table(["run", "BLEU"], [["a|b\nc\r\nd", "1.0"]])
    assert found == "| run | BLEU |\n| --- | ---: |\n| a\\|b c d | 1.0 |"
