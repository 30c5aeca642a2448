"""Pictures as files."""

import logging
import re
import warnings

import pytest

from user_dir.tools.shared.pictures import format_of, line_style, new_figure, point_style, save


def test_dollars_in_names_begin_no_formula(tmp_path):
    figure = new_figure(2, 2, r"a $\x$ title")
    axis = figure.subplots()
    axis.set(yscale="log", ylim=(1, 100))
    axis.plot([1], [10], label=r"$\x$")
    axis.set_xticks([1], [r"$\x$"])
    figure.legend()
    save(figure, tmp_path / "x.svg")
    assert any("10^" in label.get_text() and label.get_parse_math() for label in axis.get_yticklabels())


def test_a_path_that_is_not_utf_8(tmp_path):
    """Its byte is an escape, as in files.write_text."""
    figure = new_figure(2, 2, "branch weights of runs/\udce9")
    figure.legend(handles=figure.subplots().plot([1], [1], label="runs/\udce9"))
    save(figure, tmp_path / "x.png")
    (label,) = figure.legends[0].get_texts()
    assert figure.get_suptitle() == r"branch weights of runs/\udce9" and label.get_text() == r"runs/\udce9"


@pytest.mark.parametrize("style", [line_style, point_style])
def test_so_many_lines_and_points_differ(style):
    assert len({tuple(style(number).values()) for number in range(32)}) == 32
    without_colours = [tuple(style(number).values())[1] for number in range(5)]  # in black and white
    assert len({*without_colours[:4]}) == len({*without_colours[1:]}) == 4


def test_no_debugging_lines(tmp_path):
    """fairseq's import shows those of all libraries."""
    for action in (lambda: new_figure(1, 1), lambda: format_of(tmp_path / "x.png")):
        logging.getLogger("matplotlib").setLevel(logging.NOTSET)
        action()
        assert logging.getLogger("matplotlib").level == logging.WARNING


@pytest.mark.parametrize("kind", ["png", "svg", "pdf", "PNG"])
def test_characters_that_the_font_lacks(tmp_path, capsys, kind):
    """matplotlib would warn of each of them, several times."""
    figure, path = new_figure(2, 2, "box \ue001\ue002"), tmp_path / f"x.{kind}"  # which no font has
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(figure, path)
        save(new_figure(2, 2, "box"), tmp_path / f"y.{kind}")
    (line,) = capsys.readouterr().err.splitlines()
    with pytest.warns(UserWarning, match="constrained_layout not applied"):  # others are passed on
        (tiny := new_figure(0.1, 0.1)).subplots()
        save(tiny, tmp_path / f"z.{kind}")
    assert re.search(f"^{path}: .* 2 characters .*\ue001\ue002.*font.family", line) and path.exists()
