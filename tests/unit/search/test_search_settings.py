"""The settings of beam search that a run keeps: what is written, who takes it, and what is refused."""

import errno
import json
import shutil
from unittest import mock

import pytest
from fairseq.dataclass.configs import GenerationConfig

from user_dir.errors import InputError
from user_dir.search import search_settings
from user_dir.search.search_settings import DEFAULTS, kept_settings
from user_dir.serving.translator import Translator
from user_dir.tools import plot_attention, translate

from support import write_preparation

KEPT = {"beam": 6, "lenpen": 0.3, "max_len_a": 1.5, "max_len_b": 7, "lenpen_form": "vaswani"}


@pytest.fixture
def run(saved):
    """A checkpoint and the options that name its data."""
    _, path, data = saved("vaswani_transformer_base")
    write_preparation(data)
    return path, ["--data", str(data)]


def keep(path, settings):
    (path.parent / "search.json").write_text(json.dumps(settings))


def used(translator, **given):
    generator = translator.generator(**given)
    names = {"beam": "beam_size", "lenpen": "len_penalty", "max_len_a": "max_len_a", "max_len_b": "max_len_b"}
    found = {name: getattr(generator, attribute) for name, attribute in names.items()}
    return {**found, "lenpen_form": "fairseq" if type(found["lenpen"]) is float else "vaswani"}


def test_a_recipe_keeps_what_fairseq_generate_searched_with(tmp_path):
    """Its options, of which the last word counts, and its own defaults for the others."""
    options = "--tokenizer moses --beam 4 --lenpen 0.6 --max-len-a 1 --beam 1 --max-len-b 10 --lenpen-form vaswani"
    search_settings.main([str(tmp_path / "search.json"), *options.split()])
    kept = {"beam": 1, "lenpen": 0.6, "lenpen_form": "vaswani", "max_len_a": 1, "max_len_b": 10}
    assert kept_settings(tmp_path) == kept
    search_settings.main([str(tmp_path / "search.json"), "--lenpen", "-10"])
    assert kept_settings(tmp_path)["lenpen"] == -10
    search_settings.main([str(tmp_path / "search.json")])
    names = "beam", "lenpen", "max_len_a", "max_len_b"
    of_fairseq = {name: getattr(GenerationConfig, name) for name in names} | {"lenpen_form": "fairseq"}
    assert kept_settings(tmp_path) == of_fairseq and len([*tmp_path.iterdir()]) == 1
    for place, option, words in (("search.json", "0", "beam 0: give a whole"), ("no/search.json", "5", "no folder")):
        with pytest.raises(SystemExit, match=words):
            search_settings.main([str(tmp_path / place), "--beam", option])
    assert kept_settings(tmp_path) == of_fairseq


def test_a_translator_takes_them(run, tmp_path):
    """A caller's values win; without a file the defaults hold, with a part of them the others.

    An ensemble takes those of its first checkpoint's run.
    """
    path, (_, data) = run
    assert used(Translator(path, data=data)) == DEFAULTS == {**DEFAULTS, "beam": 4, "lenpen": 1}
    keep(path, KEPT)
    translator = Translator(path, data=data)
    assert used(translator) == KEPT and used(translator, beam=2, lenpen=0) == {**KEPT, "beam": 2, "lenpen": 0}
    (tmp_path / "other").mkdir()
    other = shutil.copy(path, tmp_path / "other")
    assert used(Translator(path, other, data=data)) == KEPT and used(Translator(other, path, data=data)) == DEFAULTS
    keep(path, {"beam": 5})
    assert used(Translator(path, data=data)) == {**DEFAULTS, "beam": 5}
    with pytest.raises(InputError, match="there is no checkpoint .*checkpoint.pt/average.pt"):  # that is no folder
        Translator(path / "average.pt", data=data)


def test_the_commands_take_them(run, monkeypatch, tmp_path, capsysbinary):
    path, data = run
    keep(path, KEPT)
    seen, search_settings_of = [], Translator.generator
    spy = lambda self, **given: seen.append(used_by(self, given)) or search_settings_of(self, **given)  # noqa: E731
    used_by = lambda self, given: search_settings.search_settings(self.kept, **given)  # noqa: E731
    monkeypatch.setattr(Translator, "generator", spy)
    translate.main([str(path), "w1 w2", *data])
    translate.main([str(path), "w1 w2", *data, "--beam", "2", "--lenpen", "0"])
    picture = ["--sentence", "w1 w2", "--output", str(tmp_path / "a.html")]
    plot_attention.main([str(path), *data, *picture])
    plot_attention.main([str(path), *data, *picture, "--beam", "2", "--lenpen", "2"])
    assert seen == [KEPT, {**KEPT, "beam": 2, "lenpen": 0}, KEPT, {**KEPT, "beam": 2, "lenpen": 2}]


def test_n_best_of_the_beam_that_is_used(run, capsysbinary):
    path, data = run
    with pytest.raises(SystemExit, match="nbest 5 .*beam 4: "):
        translate.main([str(path), "w1", *data, "--nbest", "5"])
    keep(path, KEPT)
    translate.main([str(path), "w1", *data, "--nbest", "5"])
    assert capsysbinary.readouterr().out.count(b"\n") == 5
    with pytest.raises(SystemExit, match="nbest 5 .*beam 2: "):
        translate.main([str(path), "w1", *data, "--nbest", "5", "--beam", "2"])


OTHERS = '[4]|4|{|{"beam": true}|{"other": 1}|{"beam": 0, "max_len_b": -1}|{"lenpen": Infinity}|{"max_len_b": 0}'


@pytest.mark.parametrize("text", ["", *OTHERS.split("|"), '{"max_len_a": -1}', f'{{"beam": {"9" * 400}}}', "[" * 99999])
def test_a_file_of_another_kind_is_refused(run, text):
    """test_translator.py has more numbers."""
    path, data = run
    (path.parent / "search.json").write_text(text)
    with pytest.raises(InputError, match=r"search\.json.* remove it"):
        kept_settings(path.parent)
    with pytest.raises(SystemExit) as stop:
        translate.main([str(path), "w1", *data])
    assert "search.json" in str(stop.value) and "\n" not in str(stop.value)


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    full = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "search.json"))
    monkeypatch.setattr(search_settings, "write_text", mock.Mock(side_effect=full))
    with pytest.raises(SystemExit, match="search_settings: .*No space left on device: '.*search.json'"):
        search_settings.main([str(tmp_path / "search.json")])
