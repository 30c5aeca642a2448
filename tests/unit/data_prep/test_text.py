"""Lines and spaces of text."""

from preparation.text import read_lines, tidy


def test_lines_end_at_newlines_only(tmp_path):
    (tmp_path / "text").write_bytes("\ufeffun\u2028deux\x0b\ntrois".encode())
    assert list(read_lines(tmp_path / "text")) == ["un\u2028deux\x0b", "trois"]


def test_tidy():
    assert tidy("  e\u0301te\u0301\u00a0:\u202foui\u2028\r\n") == "été : oui"
