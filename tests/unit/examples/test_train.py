"""examples/train.py: which trainings count as done. That it runs them is in integration/test_trainings.py."""

import argparse
import errno
import signal
import sys
from unittest import mock

import pytest
import torch
import train
from trainings import HOW, Training

from user_dir.tools.shared.records import read_record


def new_training(folder):
    files = {"run": folder / "row.1", "record": folder / "row.1.json"}
    return argparse.Namespace(name="row.1", row="row", command=lambda mirror: ({}, ["a.sh"]), **files)


def test_a_training_that_was_killed_is_not_recorded(tmp_path):
    """Its status is then negative; an earlier one may have left a record in its folder."""
    training = argparse.Namespace(record=tmp_path / "row.1.json", row="row", run=tmp_path)
    (tmp_path / "run.json").write_text('{"seed": 1}')
    job = argparse.Namespace(training=training, log="row.1.log", process=argparse.Namespace(returncode=-9))
    assert train.finish(job) == "ended with status -9; see the end of row.1.log" and not training.record.exists()
    job.process.returncode = 0
    assert train.finish(job) is None and read_record(training.record) == {"row": "row", "seed": 1}


def test_others_go_on_if_a_record_cannot_be_written(tmp_path, monkeypatch):
    training = argparse.Namespace(record=tmp_path / "row.1.json", row="row", run=tmp_path)
    (tmp_path / "run.json").write_text('{"seed": 1}')
    full = OSError(errno.ENOSPC, "No space left on device", str(training.record))
    monkeypatch.setattr(train, "write_record", mock.Mock(side_effect=full))
    job = argparse.Namespace(training=training, process=argparse.Namespace(returncode=0))
    assert train.finish(job) == f"[Errno 28] No space left on device: '{tmp_path}/row.1.json'"


def test_as_many_at_a_time_as_asked(tmp_path, monkeypatch):
    class Job:
        running = most = 0

        def __init__(self, training, mirror, gpu):
            self.training, self.process, self.gpu = training, self, gpu
            Job.running += 1
            Job.most = max(Job.most, Job.running)

        def progress(self):
            return ""

        def poll(self):
            Job.running -= 1
            return 0

    monkeypatch.setattr(train, "Running", Job)
    monkeypatch.setattr(train, "finish", lambda job: None)
    monkeypatch.setattr(train.signal, "signal", lambda number, handler: None)
    waiting = [argparse.Namespace(name=name, record=tmp_path / name) for name in "abc"]
    assert train.train(waiting, 2, None) == 0 and Job.most == 2


def test_others_go_on_if_one_cannot_begin(tmp_path, monkeypatch, capsys):
    """And one of which a record has come meanwhile, of another train.py, is not trained again."""
    begun = []
    waiting = [argparse.Namespace(name=name, record=tmp_path / name) for name in "abcd"]
    waiting[3].record.touch()

    def begin(training, mirror, gpu):
        begun.append(training.name)
        raise OSError(errno.ENOSPC, "No space left on device", f"{training.name}.log")

    monkeypatch.setattr(train, "Running", begin)
    monkeypatch.setattr(train.signal, "signal", lambda number, handler: None)
    assert train.train(waiting, 2, None) == 3 and begun == [*"abc"]
    assert "b: [Errno 28] No space left on device: 'b.log'\n" in capsys.readouterr().out


def test_trainings_are_spread_over_the_gpus_that_are_visible(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert train.visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    assert train.visible_gpus() == ["3", "5", "7"]


def test_a_report_wider_than_the_terminal_is_replaced_as_a_whole(monkeypatch, capsys, tmp_path):
    """As with --jobs 10; a record's name is shorter, and stands alone in its line."""
    polled = iter([None, 0])
    job = argparse.Namespace(training=argparse.Namespace(name="a", record=tmp_path / "a"), gpu=None)
    job.process, job.progress = argparse.Namespace(poll=lambda: next(polled)), lambda: "x" * 70
    monkeypatch.setattr(train, "Running", lambda *words: job)
    monkeypatch.setattr(train, "finish", lambda job: None)
    monkeypatch.setattr(train.signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    assert train.train([job.training], 1, None) == 0
    report = f"0 of 1 ended | {'x' * 70}"  # 85 characters, in three lines
    assert capsys.readouterr().out == f"\r\x1b[J{report}\x1b[2A\r\x1b[Ja: {tmp_path}/a\n"


def test_the_log_of_an_attempt_before_stays(tmp_path, monkeypatch):
    (tmp_path / "row.1.log").write_text("the reason why it failed\n")
    monkeypatch.setattr(train.subprocess, "Popen", lambda *words, **how: argparse.Namespace(pid=0))
    assert train.Running(new_training(tmp_path), None, None).log.read_text() == "the reason why it failed\n"


def test_the_recipe_is_told_which_data_the_row_has(tmp_path, monkeypatch):
    started = mock.Mock(return_value=argparse.Namespace(pid=0))
    monkeypatch.setattr(train.subprocess, "Popen", started)
    (tmp_path / "row.word.2.json").write_text('{"corpus": {"sha256": "of another row"}}')
    train.Running(new_training(tmp_path), None, None)
    (tmp_path / "row.2.json").write_text('{"corpus": {"sha256": "12ab"}}')
    train.Running(new_training(tmp_path), None, None)
    assert [call.kwargs["env"].get("DATA_SHA256") for call in started.mock_calls] == [None, "12ab"]


def test_nohup(monkeypatch):
    heard, ignored = [], {signal.SIGHUP: signal.SIG_IGN}
    monkeypatch.setattr(train.signal, "getsignal", ignored.get)
    monkeypatch.setattr(train.signal, "signal", lambda number, handler: heard.append(number))
    assert train.train([], 2, None) == 0 and heard == [signal.SIGINT, signal.SIGTERM]


def test_an_empty_variable_is_not_set(monkeypatch):
    """As after `export GPUS=`: a recipe would take all GPUs for each training."""
    for name in HOW:
        monkeypatch.setenv(name, "")
    variables, _ = Training("row.1", "row", "group", "", "a.sh", {"SEED": "1"}, [], "").command(None)
    assert (variables["GPUS"], variables["OMP_NUM_THREADS"]) == ("0", "1")


def test_the_last_report_is_shown(tmp_path):
    job = argparse.Namespace(training=argparse.Namespace(name="row.1"), log=tmp_path / "row.1.log")
    job.log.write_text("# prepare\n\n# train\n")
    assert train.Running.progress(job) == "row.1: train"
    reports = ("10 of 90: loss 3, 100 words/s, 1 s", "20 of 90: loss 2, 200 words/s, 2 s", "20 of 90: valid loss 4.5")
    job.log.write_text("".join(f"update {report}\n" for report in reports))
    assert train.Running.progress(job) == "row.1: 20 of 90, 200 words/s, valid 4.5"
    with job.log.open("a") as log:  # as fairseq writes more than 999,999
        log.write("update 30 of 90: loss 1, 1.5e+06 words/s, 3 s\n")
    assert train.Running.progress(job) == "row.1: 30 of 90, 1.5e+06 words/s, valid 4.5"
    job.log.unlink()  # which ends no training
    assert train.Running.progress(job) == "row.1: begins"


def test_a_pattern_names_trainings(monkeypatch, capsys):
    row = {"recipe": "a.sh", "families": ["one", "other"], "seeds": [1, 2]}
    monkeypatch.setattr(train, "read_table", lambda: {"group": {"rows": [row]}})
    monkeypatch.setattr(sys, "argv", ["train.py", "group.o*r.1", "group.one.2", "--list"])
    train.main()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("to do group.other.1: ") and second.startswith("to do group.one.2: ")


@pytest.mark.parametrize(
    "given, words",
    [
        (["g2p", "--jobs", "0"], "--jobs 0: "),
        (["g2p", "--mirror", "/no/where"], "--mirror /no/where: "),
        (["g2p", "g2q"], "g2q: neither a group"),
        ([], "name a group"),
    ],
)
def test_arguments_that_train_nothing_are_refused(monkeypatch, capsys, given, words):
    """Without a name it would train all groups, for weeks."""
    monkeypatch.setattr(train, "train", lambda *arguments: 0)
    monkeypatch.setattr(sys, "argv", ["train.py", *given])
    with pytest.raises(SystemExit) as refused:
        train.main()
    assert refused.value.code == 2 and words in capsys.readouterr().err


def test_a_damaged_record_does_not_count_as_done(tmp_path, monkeypatch):
    row = {"recipe": "a.sh", "families": ["one"], "seeds": [1, 2]}
    monkeypatch.setattr(train, "read_table", lambda: {"group": {"rows": [row]}})
    monkeypatch.setattr("trainings.RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", "--list"])
    (tmp_path / "group.one.1.json").write_text("{}")
    train.main()
    (tmp_path / "group.one.2.json").write_text('{"seed": 2, "upd')
    with pytest.raises(SystemExit, match="train.py: .*group.one.2.json is not the record of a run"):
        train.main()
