"""Texts out of compressed files."""

import gzip

from preparation.archives import lines_within


def test_gz_texts(tmp_path):
    (tmp_path / "text.gz").write_bytes(gzip.compress("un\ndeux\u2028trois\n".encode()))
    assert list(lines_within(tmp_path / "text.gz", [])) == ["un", "deux\u2028trois"]
