"""The average of checkpoints is the mean of their parameters, and unsuitable files are refused in one line."""

import argparse

import pytest
import torch

from user_dir.tools import average_checkpoints


def checkpoint(path, value, dtype=torch.float32, words=None, options=(), updates=None, **more):
    model = {"weight": torch.full((2, 3), value, dtype=dtype), "version": torch.tensor(3), **more}
    cfg = {"model": argparse.Namespace(arch="x", **dict(options))}
    state = {"cfg": cfg, "model": model, "last_optimizer_state": {"big": 1}}
    state["extra_state"] = {"ema": {"weight": value}, "ema_fp32_params": {"weight": value}, "val_loss": 4.5}
    state["extra_state"]["previous_training_time"] = 400.0
    state["optimizer_history"] = [{"num_updates": updates}] if updates else []
    torch.save({**state, "task_state": {"dictionaries": words} if words else {}}, path)
    return path


def averaged(tmp_path, *arguments):
    average_checkpoints.main([*map(str, arguments), "--output", str(tmp_path / "average.pt")])
    return torch.load(tmp_path / "average.pt")


def test_mean_of_named_files(tmp_path):
    files = [checkpoint(tmp_path / f"{value}.pt", value) for value in (1.0, 2.0, 6.0)]
    state = averaged(tmp_path, *files)
    assert torch.equal(state["model"]["weight"], torch.full((2, 3), 3.0))
    assert state["model"]["version"] == 3
    assert state["last_optimizer_state"] is None
    # A moving average is of one checkpoint, and a new training has all of --stop-time-hours.
    assert state["extra_state"] == {"val_loss": 4.5}
    assert state["cfg"]["model"].arch == "x"


def test_options_that_may_differ(tmp_path):
    """Those of the training; and an older version's checkpoint says less."""
    options = [{"dropout": 0.1, "activation_fn": "relu"}, {"dropout": 0.2}]
    files = [checkpoint(tmp_path / f"{i}.pt", 1.0, options=given) for i, given in enumerate(options)]
    assert averaged(tmp_path, *files)["cfg"]["model"].dropout == 0.2


def test_words_that_only_one_file_tells(tmp_path):
    files = [checkpoint(tmp_path / f"{i}.pt", 1.0, words=words) for i, words in enumerate((["a"], None))]
    for paths in (files, files[::-1]):
        assert averaged(tmp_path, *paths)["task_state"] == {"dictionaries": ["a"]}


def test_shared_parameters_stay_shared(tmp_path):
    """One place in fairseq's file for all their names; others of the same values have their own."""
    shared, other = torch.ones(2), torch.ones(2)
    files = [checkpoint(tmp_path / f"{i}.pt", 1.0, embed=shared, output=shared, other=other) for i in range(2)]
    model = averaged(tmp_path, *files)["model"]
    embed, output, other = (model[name].data_ptr() for name in ("embed", "output", "other"))
    assert embed == output != other
    alone = 3 * shared
    first = checkpoint(tmp_path / "first.pt", 1.0, embed=shared, output=alone, other=alone)
    model = averaged(tmp_path, first, *files[:1])["model"]  # the last one shares what the first does not
    assert (model["embed"].tolist(), model["output"].tolist()) == ([1, 1], [2, 2])


def test_sums_in_float32(tmp_path):
    """In float16 2048 + 1 is 2048: a running sum would lose the small ones."""
    files = [checkpoint(tmp_path / f"{i}.pt", value, torch.float16) for i, value in enumerate((2048.0, 1.0, 1.0, 2.0))]
    weight = averaged(tmp_path, *files)["model"]["weight"]
    assert weight.dtype == torch.float16 and torch.equal(weight, torch.full((2, 3), 513.0, dtype=torch.float16))


@pytest.mark.parametrize("by, other", [("epoch", "checkpoint_1_25.pt"), ("update", "checkpoint7.pt")])
@pytest.mark.parametrize("numbers, expected", [((2, 9, 10, 11), 10.0), ((1, 2), 1.5), ((), 9.0)])
def test_the_last_or_fewer(tmp_path, numbers, expected, by, other):
    """By number, not by name; a training that ended early has fewer."""
    for number in numbers:
        name = {"epoch": f"checkpoint{number}.pt", "update": f"checkpoint_2_{number}.pt"}[by]
        checkpoint(tmp_path / name, float(number))
    for name in (other, "checkpoint_best.pt"):
        checkpoint(tmp_path / name, 1e6)
    checkpoint(tmp_path / "checkpoint_last.pt", 9.0)
    fewer = ["--or-fewer"] if len(numbers) < 3 else []
    weight = averaged(tmp_path, tmp_path, "--last", 3, "--by", by, *fewer)["model"]["weight"]
    torch.testing.assert_close(weight, torch.full((2, 3), expected))


@pytest.mark.parametrize("size", [1, 1_000_000])
def test_a_full_disk_is_one_line(tmp_path, refusal, size):
    file = checkpoint(tmp_path / "a.pt", 1.0, big=torch.zeros(size))
    refusal(average_checkpoints.main, file, "--output", "/dev/full", match="No space left on device")


THREE = torch.ones(3)
# Checkpoints with what is in them, the words, and the message; None: cut off.
REFUSED = [
    ({"a.pt": {}, "b.pt": {"weight": THREE}}, "a.pt b.pt", "b.pt is not of the same model as .*a.pt: weight is "),
    ({"a.pt": {}, "b.pt": {"gate": THREE}}, "a.pt b.pt", "gate is .*missing in the other"),
    (
        {"a.pt": {"options": {"encoder_attention_heads": 4}}, "b.pt": {"options": {"encoder_attention_heads": 2}}},
        "a.pt b.pt",
        "encoder_attention_heads is 2 in the one and 4 in the other: name checkpoints of one run",
    ),
    (
        {
            "a.pt": {"options": {"no_token_positional_embeddings": False, "absolute_positions": "add"}},
            "b.pt": {"options": {"no_token_positional_embeddings": False, "absolute_positions": "omit"}},
        },
        "a.pt b.pt",
        "no_token_positional_embeddings is True in the one and False in the other",
    ),
    ({"a.pt": {"words": ["a"]}, "b.pt": {}, "c.pt": {"words": ["b"]}}, "a.pt b.pt c.pt", "c.pt .*dictionaries is "),
    ({"a.pt": {}, "b.pt": {"value": float("nan")}}, "a.pt b.pt", "weight in .*b.pt is not finite"),
    ({"a.pt": {}}, "a.pt b.pt", "there is no checkpoint .*b.pt"),
    ({"a.pt": {}, "b.pt": None}, "a.pt b.pt", "b.pt is not a readable fairseq checkpoint"),
    ({"a.pt": {"gate": "text"}}, "a.pt", "a.pt is not a readable fairseq checkpoint"),
    ({"checkpoint_1_50.pt": {}}, ". --last 1", "holds 0 checkpoints by epoch .*: add --by update"),
    ({"checkpoint_last.pt": {}}, ". --last 1", "by epoch .*: name another folder, or .*checkpoint_last.pt alone"),
    ({}, "rnu --last 1", "there is no folder .*rnu: name the folder of a run"),
    ({"a.pt": {}}, "a.pt a.pt", "a.pt is given twice"),
    (
        {"a.pt": {"updates": 8}, "b.pt": {"updates": 9}, "checkpoint_best.pt": {"updates": 8}},
        "a.pt b.pt checkpoint_best.pt",
        "checkpoint_best.pt and .*a.pt are both of update 8: name different checkpoints",
    ),
    ({"a.pt": {}}, "a.pt {folder}/a.pt", "a.pt is given twice"),
    ({"a.pt": {}}, "a.pt ../{folder.name}/a.pt", "a.pt is given twice"),
    ({"checkpoint1.pt": {}}, ". --last 2", "holds 1 checkpoints by epoch and 2 are to be averaged"),
]


@pytest.mark.parametrize("files, words, message", REFUSED, ids=[message for *_, message in REFUSED])
def test_refused_in_one_line_and_nothing_written(tmp_path, monkeypatch, refusal, files, words, message):
    monkeypatch.chdir(tmp_path)
    for name, more in files.items():
        checkpoint(tmp_path / name, **{"value": 1.0, **(more or {})})
        if more is None:
            (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:500])
    words = words.format(folder=tmp_path).split()
    refusal(average_checkpoints.main, *words, "--output", "average.pt", match=message)
    assert not list(tmp_path.glob("average*"))


def test_a_missing_folder_is_found_before_the_work(refusal):
    refusal(average_checkpoints.main, "nowhere.pt", "--output", "nowhere/average.pt", match="no folder nowhere")


@pytest.mark.parametrize(
    "words, message",
    [
        ("{folder}", "one folder and --last N"),  # a folder needs a number
        ("{folder} {folder}/checkpoint1.pt --last 1", "either checkpoint files, or one folder"),
        ("{folder}/checkpoint1.pt --by update", "--by and --or-fewer go with --last N"),
        ("{folder}/checkpoint1.pt --or-fewer", "--by and --or-fewer go with --last N"),
    ],
)
def test_options_that_go_together(tmp_path, capsys, words, message):
    checkpoint(tmp_path / "checkpoint1.pt", 1.0)
    with pytest.raises(SystemExit):
        averaged(tmp_path, *words.format(folder=tmp_path).split())
    assert message in capsys.readouterr().err
