"""A file is whole or not there, whoever else writes it."""

import errno
import os
import pathlib
import stat
from unittest import mock

import pytest

from user_dir.errors import InputError
from user_dir.files import folder_beside, write, write_text


def test_two_at_a_time(tmp_path):
    """The one that ends last has the file, whole; each has its own meanwhile."""
    path = tmp_path / "x.en"

    def first(partial):
        partial.write_text("a" * 4000)
        write(path, lambda other: other.write_text("b"))
        assert path.read_text() == "b"

    write(path, first)
    assert path.read_text() == "a" * 4000 and os.listdir(tmp_path) == ["x.en"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt, SystemExit])
def test_nothing_half_written_stays(tmp_path, error):
    path = tmp_path / "x.en"
    path.write_text("before")

    def interrupted(partial):
        partial.write_text("half")
        raise error

    with pytest.raises(error):
        write(path, interrupted)
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["x.en"]


def test_a_full_disk_is_named_by_the_file_that_it_lacks(tmp_path):
    fill = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/x.en'"):
        write(tmp_path / "x.en", fill)


def test_a_full_disk_is_named_by_the_folder_that_it_lacks(tmp_path):
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/export'"):
        with folder_beside(tmp_path / "export") as folder:
            raise OSError(errno.ENOSPC, "No space left on device", f"{folder}/model/bpe")


def test_another_file_that_is_missing_is_named_itself(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"'{tmp_path}/x.fr'"):
        write(tmp_path / "x.en", lambda partial: partial.write_text((tmp_path / "x.fr").read_text()))


def test_a_missing_folder_is_named_not_a_temporary_file(tmp_path):
    with pytest.raises(InputError, match=r"nowhere/x.en: there is no folder \S+/nowhere: make it"):
        write(tmp_path / "nowhere/x.en", lambda partial: partial.write_text(""))


def test_a_folder_that_takes_no_files_is_named_not_a_temporary_one():
    with pytest.raises(InputError, match=r"^/sys/x.en cannot be written: (?!.*/sys/x.en\.)"):
        write(pathlib.Path("/sys/x.en"), lambda partial: partial.write_text(""))


def test_a_path_that_is_not_utf_8_in_a_text(tmp_path):
    write_text(tmp_path / "record", "é runs/\udce9")
    assert (tmp_path / "record").read_text(encoding="utf-8") == "é runs/\\udce9"


def test_who_may_read_it(tmp_path):
    write(tmp_path / "x.en", lambda partial: partial.write_text(""))
    (tmp_path / "plain").write_text("")
    assert stat.S_IMODE((tmp_path / "x.en").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    (tmp_path / "x.en").chmod(0o600)  # it stays private when it is written again
    write(tmp_path / "x.en", lambda partial: partial.write_text(""))
    assert stat.S_IMODE((tmp_path / "x.en").stat().st_mode) == 0o600


def test_the_standard_output_stays_a_link(tmp_path):
    """/dev/stdout leads to a file where the shell redirects it, and is no file to be replaced."""
    with open(tmp_path / "redirected", "w") as file:
        link = tmp_path / "stdout"
        link.symlink_to(f"/proc/self/fd/{file.fileno()}")
        for path in (link, pathlib.Path(f"/dev/fd/{file.fileno()}")):
            write(path, lambda partial: partial.write_text("a"))
            assert link.is_symlink() and (tmp_path / "redirected").read_text() == "a"
            assert sorted(os.listdir(tmp_path)) == ["redirected", "stdout"]


def test_a_link_stays_one(tmp_path):
    """Also one to a file that is not there yet."""
    link = tmp_path / "link.en"
    link.symlink_to("x.en")
    for text in ("before", "after"):
        write(link, lambda partial, text=text: partial.write_text(text))
        assert (tmp_path / "x.en").read_text() == text
        assert link.is_symlink() and sorted(os.listdir(tmp_path)) == ["link.en", "x.en"]


def test_neither_a_folder_nor_an_input_is_written_over(tmp_path):
    text, link = tmp_path / "x.fr", tmp_path / "link.fr"
    text.write_text("before")
    link.symlink_to(text)
    for path, reason in ((tmp_path, "is a folder: name a file in it"), (link, "is the input: name another file")):
        with pytest.raises(InputError, match=reason):
            write(path, lambda partial: partial.write_text("after"), [text])
    assert text.read_text() == "before"
    write(tmp_path / "x.en", lambda partial: partial.write_text("after"), [text, tmp_path / "absent"])
    assert sorted(os.listdir(tmp_path)) == ["link.fr", "x.en", "x.fr"]
