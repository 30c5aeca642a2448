"""record.py: the time of a training that was interrupted, one corpus for all starts, kept scores, and the machine."""

import errno
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess

import pytest
import record

from user_dir.errors import InputError

from support import executable

LINE = "| INFO | train_inner | epoch 001: 1 / 9 loss=5, wps=100.0, num_updates={update}, wall={wall}\n"


def course(folder, lines):
    """The course of a training with these lines in its log."""
    (folder / "train.log").write_text("".join(lines))
    return record.training(folder / "train.log")


def test_time_that_was_spent_twice_counts_twice(tmp_path):
    walls = [*range(10, 101, 10), *range(90, 201, 10)]  # killed after 100 s, continued from a checkpoint of 80 s
    found = course(tmp_path, [LINE.format(update=number, wall=wall) for number, wall in enumerate(walls)])
    assert "peak_gpu_memory_gb" not in found
    assert found["seconds"] == 210  # 220, but for what ran until the first line after the restart


def test_seconds_of_weeks_and_of_a_line_that_was_cut(tmp_path):
    cut = LINE.format(update=1, wall=23)[:-1]  # by a kill; the next start appends to it
    lines = (LINE.format(update=number, wall=f"{number * 1e5:g}") for number in range(2, 14))
    assert course(tmp_path, [cut, "2026-07-01 09:00:00 | INFO | x | x\n", *lines])["seconds"] == 1_300_000


def test_validations_have_the_time_and_the_training_loss_of_their_updates(tmp_path):
    valid = "| INFO | valid | epoch 001 | valid on 'valid' subset | loss 4 | bleu 7.5 | num_updates 15\n"
    lines = [LINE.format(update=10, wall=20), LINE.format(update=20, wall=40).replace("loss=5", "loss=4"), valid]
    expected = {"update": 15, "epoch": 1, "seconds": 30, "loss": 4.0, "bleu": 7.5, "training_loss": 4.5}
    found = course(tmp_path, lines)
    assert found["validation"] == [expected] and found["updates"] == 20


def test_speed_is_the_median_and_the_last_reason_counts(tmp_path):
    """One slow interval changes nothing, and a training that continued ended for the second reason."""
    lines = [LINE.replace("100.0", f"{wps}").format(update=wps, wall=wps) for wps in (10, 100, 110)]
    lines[-1] = lines[-1].replace("epoch 001", "epoch 002")
    devices = [f"training on {number} devices (GPUs/TPUs)\n" for number in (1, 4)]
    ends = [f"Stopping training due to num_updates: {n} >= max_update: {n}" for n in (50, 110)]
    ends += ["early stop since valid performance hasn't improved for last 10 runs"]
    devices.append("num. shared model params: 31,541,248 (num. trained: 31,541,248)\n")
    found = course(tmp_path, [*devices, *lines, *(f"{end}\n" for end in ends)])
    assert found["epochs"] == 2 and found["parameters"] == 31_541_248
    assert found["processes"] == 4 and found["words_per_second"] == 100 and found["ended"] == ends[-1]


def test_a_log_without_a_line_of_training(tmp_path):
    """As when it is translated with the first checkpoint."""
    line = "2026-11-24 10:00:00 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 9 | num_updates 5\n"
    found = course(tmp_path, [line])
    assert found["seconds"] is None and len(found["validation"]) == 1


def test_memory_is_the_largest_of_the_log(tmp_path):
    memory = [(1.5, 3), (1.75, 8), (1.25, 7)]
    lines = [LINE.replace("wps", f"memory_gb={host}, gpu_memory_gb={gpu}, wps") for host, gpu in memory]
    found = course(tmp_path, [line.format(update=update, wall=update) for update, line in enumerate(lines)])
    assert (found["peak_memory_gb"], found["peak_gpu_memory_gb"]) == (1.75, 8)


@pytest.mark.parametrize("file", ["trained", "checkpoint2.pt"])
def test_a_training_of_a_version_that_kept_no_starts(tmp_path, file):
    """Today's commit is not that of the training."""
    (tmp_path / file).touch()
    for _ in range(2):
        record.begin(tmp_path, tmp_path / "data-bin", ["recipe.sh"])
    commits = [start["commit"] for start in record.starts_of(tmp_path)]
    assert commits == [f"{record.commit()} after an unknown one", record.commit()]


def test_a_run_has_one_corpus(tmp_path):
    run, data = tmp_path / "run", tmp_path / "data-bin"
    run.mkdir()
    record.begin(run, data, ["recipe.sh"])  # before it is prepared
    data.mkdir()
    (data / "dict.fr.txt").write_text("a 1\n")
    for line in ("first\n", "second\n"):
        (data / "preprocess.log").write_text(line)  # fairseq-preprocess's, which is not what is trained on
        record.begin(run, data, ["recipe.sh"])
    for name, content in (("train.fr-en.fr.bin", "other text"), ("dict.fr.txt", "b 1\n")):  # one of both at a time
        (data / name).write_text(content)
        with pytest.raises(SystemExit, match="data-bin has changed since .*run began: .*OUTPUT="):
            record.begin(run, data, ["recipe.sh"])
        (data / "train.fr-en.fr.bin").unlink(missing_ok=True)
    assert len((run / "starts.jsonl").read_text().splitlines()) == 3


def test_a_training_has_the_data_of_its_row(tmp_path, monkeypatch):
    """Or it would end after hours with a record that no table takes."""
    run, data = tmp_path / "run", tmp_path / "data-bin"
    for folder in (run, data):
        folder.mkdir()
    (data / "dict.fr.txt").write_text("a 1\n")
    for known in ("", record.digest(data)):  # the first seed, and another
        monkeypatch.setenv("DATA_SHA256", known)
        record.begin(run, data, ["recipe.sh"])
    monkeypatch.setenv("DATA_SHA256", "0" * 64)
    with pytest.raises(SystemExit, match="data-bin is not the data of the row's other records: "):
        record.begin(run, data, ["recipe.sh"])
    assert len(record.starts_of(run)) == 2


def test_a_damaged_list_of_starts_is_one_line(tmp_path):
    (tmp_path / "starts.jsonl").write_text('{"commit": "1"}\n{"com')
    with pytest.raises(SystemExit, match="record.py: .*starts.jsonl is damaged .*: remove the line"):
        record.begin(tmp_path, tmp_path / "no-data", ["recipe.sh"])


def test_a_start_that_cannot_be_written_leaves_the_earlier_ones(tmp_path, monkeypatch):
    record.begin(tmp_path, tmp_path / "data-bin", ["a.sh"])
    before = (tmp_path / "starts.jsonl").read_text()

    def full(path, text, **options):
        path.write_bytes(text[: len(text) // 2].encode())
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "write_text", full)
    with pytest.raises(OSError, match="No space left on device: '.*starts.jsonl'"):
        record.begin(tmp_path, tmp_path / "data-bin", ["a.sh"])
    assert (tmp_path / "starts.jsonl").read_text() == before


@pytest.fixture
def scored(tmp_path):
    """The folders of a run that has a score, and of its data."""
    run, data = tmp_path / "run", tmp_path / "data"
    for folder in (run, data):
        folder.mkdir()
    (data / "dict.fr.txt").write_text("a 1\n")
    (run / "options").write_text(f"{data} --seed 2 --seed 3")
    (run / "generate.log").touch()
    (run / "score.txt").write_text("BLEU|x = 1.0 2/3")
    return run, data


def test_a_record_is_of_the_training_not_of_later_steps(scored, monkeypatch):
    run, data = scored
    stopped = {"commit": "0", "command": "stopped.sh", "begun": "earlier", "machine": {"cpu": "of an attempt"}}
    (run / "starts.jsonl").write_text(json.dumps(stopped) + "\n")
    monkeypatch.setattr(record, "machine", lambda: {"cpu": "the first"})
    monkeypatch.setattr(record, "versions", lambda: {"torch": "1"})
    record.begin(run, data, ["first.sh"])
    assert record.record(run)["ended"] == "not yet: it was scored before its end"
    (run / "trained").touch()
    monkeypatch.setattr(record, "machine", lambda: {"cpu": "another"})
    monkeypatch.setattr(record, "versions", lambda: {"torch": "2"})
    record.begin(run, data, ["second.sh"])
    found = record.record(run)
    assert found["command"].endswith(" first.sh") and found["commits"] == ["0", record.commit()]
    assert found["machine"] == {"cpu": "the first"} and found["versions"] == {"torch": "1"} and found["starts"] == 3
    assert "ended" not in found and found["begun"] == "earlier" and found["seed"] == 3  # fairseq takes the last one
    assert found["scores"] == {"sacreBLEU": {"score": 1.0, "signature": "BLEU|x"}}


def test_the_command_can_be_typed_again(scored, monkeypatch):
    for name, value in {"STEPS": "train", "PREPARATION": "--lowercase --max-ratio 5", "MERGES": "1000"}.items():
        monkeypatch.setenv(name, value)
    record.begin(*scored, ["first.sh"])
    command = record.record(scored[0])["command"]
    assert command.endswith("PREPARATION='--lowercase --max-ratio 5' MERGES=1000 first.sh") and "STEPS" not in command


@pytest.mark.parametrize("option, kept, precision", [("", "bf16", "bf16"), ("--fp16", "bf16", "fp16"), ("", "", "off")])
def test_the_precision_of_a_training(scored, option, kept, precision):
    """That of the options, or which the recipe has kept; a training of fairseq's own model has neither."""
    run, data = scored
    (run / "options").write_text(f"{data} {option}")
    if kept:
        (run / "precision").write_text(f"{kept}\n")
    record.begin(run, data, ["recipe.sh"])
    assert record.record(run)["precision"] == precision


def test_data_that_are_removed_after_the_training(scored):
    """Translations have their references."""
    run, data = scored
    record.begin(run, data, ["train.sh"])
    (run / "trained").touch()
    corpus = record.record(run)["corpus"]
    shutil.rmtree(data)
    record.begin(run, data, ["score.sh"])
    assert record.record(run)["corpus"] == corpus


def test_a_training_that_continued_on_another_machine_has_both(tmp_path, monkeypatch):
    """Its seconds and words/s are of both."""
    (tmp_path / "options").write_text(f"{tmp_path} --seed 1")
    for name, text in (("generate.log", ""), ("score.txt", "BLEU|x = 1.0 2/3")):
        (tmp_path / name).write_text(text)
    for cpu, mark in (("slow", ""), ("fast", ""), ("another", "trained")):  # the last one only scores
        if mark:
            (tmp_path / mark).touch()
        monkeypatch.setattr(record, "machine", lambda cpu=cpu: {"cpu": cpu})
        record.begin(tmp_path, tmp_path / "no-data", ["recipe.sh"])
        monkeypatch.setattr(record, "digest", lambda folder: "1")
        found = record.record(tmp_path)
        assert ("earlier_machine" in found) == (cpu != "slow") and "earlier_versions" not in found
    assert found["machine"] == {"cpu": "fast"} and found["earlier_machine"] == [{"cpu": "slow"}]


def test_scores_that_others_added_stay(tmp_path, monkeypatch):
    found = {"corpus": {"sha256": "1"}, "scores": {"sacreBLEU": {"score": 2.0}}}
    monkeypatch.setattr(record, "record", lambda run: json.loads(json.dumps(found)))
    earlier = {"sacreBLEU": {"score": 1.0}, "sacreBLEU of other.en": {"score": 3.0}}
    for corpus, kept in (("1", earlier), ("2", {})):
        (tmp_path / "run.json").write_text(json.dumps({"corpus": {"sha256": corpus}, "scores": earlier}))
        record.end(tmp_path)
        assert json.loads((tmp_path / "run.json").read_text())["scores"] == kept | found["scores"]


def test_a_variable_that_is_not_utf8(tmp_path):
    """MIRROR=/data/français, as another system has written it; the record would be the last thing to be lost."""
    found = {"command": os.fsdecode(b"MIRROR=/data/fran\xe7ais examples/multi30k.sh")}
    record.write_record(tmp_path / "run.json", found)
    assert record.read_record(tmp_path / "run.json") == found


def test_a_folder_with_a_bar_in_its_name(tmp_path):
    """A score that is no number is kept as it is."""
    (tmp_path / "generate.log").touch()
    table = (
        "| system | BLEU | sign test |\n| --- | ---: | ---: |\n| a\\|b/generate.log | 12.34 | p 1 |\n\n- BLEU: `x`\n"
    )
    (tmp_path / "score.txt").write_text(table)
    bleu, test = {"score": 12.34, "signature": "x"}, {"score": "p 1", "signature": ""}
    assert record.scores(tmp_path) == {"BLEU": bleu, "sign test": test}


def test_damaged_files_of_a_run_are_one_line(tmp_path):
    (tmp_path / "score.txt").write_text("| system | BLEU |\n")
    with pytest.raises(InputError, match="score.txt holds no score: "):
        record.scores(tmp_path)
    (tmp_path / "options").write_text("data --seed 1\n")
    with pytest.raises(InputError, match="starts.jsonl holds no start of the training: "):
        record.record(tmp_path)


def test_processors_of_one_name_are_told_apart(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    for flags, widest in (("sse2", None), ("sse2 avx2 bmi2", "avx2"), ("avx512_bf16 avx2 avx512f", "avx512_bf16")):
        cpuinfo.write_text(f"processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: {flags}\n\n" * 2)
        found = record.machine(cpuinfo)
        assert found["cpu"] == "AMD EPYC" and found.get("instructions") == widest
    assert record.machine(tmp_path / "none") == {"cpu": platform.machine(), "cores": os.cpu_count()}


def test_the_commit_is_not_that_of_a_folder_around_it(tmp_path, monkeypatch):
    """Here a download without .git lies in the user's own repository."""
    for words in ("init -q", "-c user.name=a -c user.email=a commit -q --allow-empty -m a"):
        subprocess.run(["git", "-C", tmp_path, "--git-dir=.git", *words.split()], check=True)
    monkeypatch.setattr(record, "PROJECT", tmp_path)
    assert re.fullmatch("[0-9a-f]{40}", record.commit())
    timed = "tests/benchmarks/results/cpu.json"  # the records of commands.py, which writes several one after the other
    trained = "examples/results/g2p.json"  # of train.py, as well
    for name, dirty in (("page.md", ""), (timed, ""), (trained, ""), ("file", " dirty [0-9a-f]{12}")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
        subprocess.run(["git", "-C", tmp_path, "--git-dir=.git", "add", name], check=True)
        assert re.fullmatch(f"[0-9a-f]{{40}}{dirty}", record.commit())
    monkeypatch.setattr(record, "PROJECT", tmp_path / "project")
    record.PROJECT.mkdir()
    assert record.commit() == "no checkout"


def test_every_variable_of_the_recipes_is_recorded():
    """And refused by train.py, where it would change what is trained."""
    scripts = [path for path in (record.PROJECT / "examples").glob("*.sh") if path.stem not in ("ablations", "compare")]
    heads = "".join(path.read_text(encoding="utf-8").partition("set -euo")[0] for path in scripts)
    named = {*re.findall(r"^#   ([A-Z_]+)=", heads, re.MULTILINE)}
    assert named - {*record.VARIABLES} == {"INSTALL", "MASTER_ADDR", "MASTER_PORT"}


@pytest.mark.parametrize("visible, gpus", [(None, ["A", "B"]), ("1", ["1"]), ("", None), ("none", None)])
def test_gpus_that_are_hidden_are_not_recorded(tmp_path, monkeypatch, visible, gpus):
    script = 'if [ "$3" = --id ]; then echo "$4"; else echo A; echo B; fi; [ "$4" != none ]'
    executable(tmp_path / "nvidia-smi", script)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert record.machine().get("gpus") == gpus
