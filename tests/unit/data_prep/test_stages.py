"""Stages are done once, again when something before them changes, and leave nothing half-written."""

import errno
import hashlib
import json
import shutil
from pathlib import Path

import pytest
from preparation import stages
from preparation.errors import PreparationError
from unit.data_prep.support import write

from support import PROJECT, one_line


class Recorder:
    """Runs three stages and notes which of them did anything."""

    def __init__(self, output: Path):
        self.output, self.done = output, []

    def run(self, fail="", **options):
        self.done.clear()
        run = stages.Stages(self.output, {})
        for name in ("raw", "tok", "bpe"):
            run.run(name, {name: options.get(name)}, lambda folder, name=name: self.make(folder, name, fail, options))
        return self.done

    def make(self, folder, name, fail, options):
        self.done.append(name)
        (folder / "file").write_text(f"{name} {options}")
        if name == fail:
            raise OSError(errno.ENOSPC, "No space left on device")
        return {}


def test_stages_are_done_once_and_again_when_something_before_them_changes(tmp_path, capsys):
    recorder = Recorder(tmp_path / "out")
    assert recorder.run() == ["raw", "tok", "bpe"]
    assert recorder.run() == []
    assert "replaced" not in capsys.readouterr().out
    assert recorder.run(tok=1) == ["tok", "bpe"]
    assert capsys.readouterr().out.startswith("raw: nothing to do\ntok: its options have changed; it ")
    assert recorder.run(tok=1) == []
    assert recorder.run(tok=1, bpe=2) == ["bpe"]
    (tmp_path / "out/tok/file").write_text("cut")
    assert recorder.run(tok=1, bpe=2)[0] == "tok"
    shutil.rmtree(tmp_path / "out/raw")
    assert recorder.run(tok=1, bpe=2)[0] == "raw"
    recorded = json.loads((tmp_path / "out/manifest.json").read_text())["stages"]["bpe"]
    content = (tmp_path / "out/bpe/file").read_bytes()
    assert recorded["options"]["bpe"] == 2
    assert recorded["files"]["file"] == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def test_a_file_of_another_size_is_made_again_as_the_page_says(tmp_path):
    """A change that keeps the size is not noticed, because reading all files would take long."""
    recorder = Recorder(tmp_path / "out")
    recorder.run()
    file = tmp_path / "out/bpe/file"
    file.write_bytes(file.read_bytes()[::-1])
    assert recorder.run() == []
    file.write_bytes(file.read_bytes() * 2)
    assert recorder.run() == ["bpe"]
    page = one_line(PROJECT / "data-prep/README.md")
    assert "are skipped unless options or your text have changed, or a file of theirs has another size." in page
    for command in ("prepare.py", "treebank.py"):  # in --help
        assert "have changed, it and the later stages are replaced." in one_line(PROJECT / "data-prep" / command)


def test_data_of_an_earlier_version_are_kept(tmp_path, capsys, monkeypatch):
    """Models were trained on them; what is missing or has other options is made by this version."""
    recorder = Recorder(tmp_path / "out")
    with monkeypatch.context() as earlier:
        earlier.setattr(stages, "RECIPE", stages.RECIPE - 1)
        recorder.run()
    capsys.readouterr()
    assert recorder.run() == []
    assert capsys.readouterr().out.count(f"by an earlier version; for this one's, remove {tmp_path / 'out'}, and") == 3
    assert recorder.run(bpe=2) == ["bpe"]
    shutil.rmtree(tmp_path / "out/raw")
    assert recorder.run(bpe=2) == ["raw", "tok", "bpe"]
    assert recorder.run(bpe=2) == [] and "earlier" not in capsys.readouterr().out.splitlines()[-1]
    made, run = [], stages.Stages(tmp_path / "other", {})
    for version in ("0.2.0", "0.2.1"):  # pip may have brought another sacremoses
        run.run("tok", {"sacremoses": version}, lambda folder, version=version: {"made": made.append(version)})
    assert made == ["0.2.0"] and "tok: made by an earlier version" in capsys.readouterr().out


def test_a_stage_that_fails_leaves_nothing_half_written(tmp_path, monkeypatch):
    recorder = Recorder(tmp_path / "out")
    recorder.run()
    before = (tmp_path / "out/tok/file").read_text()
    with pytest.raises(OSError):
        recorder.run(fail="tok", tok=1)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["bpe", "manifest.json", "raw", "tok"]
    assert (tmp_path / "out/tok/file").read_text() == before
    assert recorder.run(tok=1) == ["tok", "bpe"]
    with pytest.raises(OSError):
        recorder.run(fail="bpe", tok=2)
    assert not (tmp_path / "out/bpe").exists()  # recipes take a data-bin for one that is finished
    saves = iter([stages.Stages._save])
    with monkeypatch.context() as killed, pytest.raises(StopIteration):
        killed.setattr(stages.Stages, "_save", lambda self: next(saves)(self))
        recorder.run()
    assert [*json.loads((tmp_path / "out/manifest.json").read_text())["stages"]] == ["raw"]


@pytest.mark.parametrize("stage", stages.ORDER)
def test_folders_of_others_are_not_replaced(tmp_path, stage):
    write(tmp_path / stage / "thesis.tex", ["precious"])
    with pytest.raises(PreparationError, match="choose another --output"):
        Recorder(tmp_path).run()
    assert (tmp_path / stage / "thesis.tex").exists()


def test_a_link_is_refused_before_the_work(tmp_path):
    """A folder could not take its name. A finished stage may lie elsewhere."""
    recorder = Recorder(tmp_path / "out")
    recorder.run()
    (tmp_path / "out/bpe").rename(tmp_path / "bpe")
    (tmp_path / "out/bpe").symlink_to(tmp_path / "bpe")
    assert recorder.run() == []
    with pytest.raises(PreparationError, match="out/bpe is a link, .*; remove it"):
        recorder.run(tok=1)
    assert recorder.done == [] and recorder.run() == []
