"""Reading fairseq's logs, as fairseq's own classes write them."""

import math

import pytest

from user_dir.tools.shared.training_log import read_log


@pytest.mark.parametrize("header", [True, False], ids=["output", "--log-file"])
@pytest.mark.parametrize("log_format", ["simple", "json"])
def test_reads_what_fairseq_writes(fairseq_log, steps, tmp_path, log_format, header):
    log = read_log(fairseq_log(tmp_path / "train.log", log_format, steps, header))
    assert set(log) == {"train_inner", "train", "valid"}
    for kind, expected in steps.items():
        found = {update: {name: point[name] for name in expected[update]} for update, point in log[kind].items()}
        assert found == expected
    assert [point["wall"] for point in log["valid"].values()] == [30.0, 40.0]  # between and at the clock's readings


def test_lines_of_a_real_log(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(
        "2026-11-21 07:22:59 | INFO | train_inner | epoch 001:     50 / 1042 loss=10.748, nll_loss=10.514, ppl=1461.8, "
        "wps=0, ups=0, wpb=1630.9, bsz=161.4, num_updates=50, lr=0.0005, gnorm=nan, clip=56, train_wall=18, wall=20\n"
        "2026-11-21 07:23:17 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 7.613 | nll_loss 6.877 "
        "| ppl 117.52 | wps 11740.7 | wpb 1412.1 | bsz 157.1 | num_updates 100\n"
        "epoch 001:     55 / 1042 loss=nan, num_updates=55, wall=22\n"
        '{"epoch": 1, "update": 0.1, "loss": "8.\n'
        '{"epoch": 1, "update": 0.1, "loss": "8.0", "num_updates": null}\n'
        "epoch 001:     60 / 1042 loss=10.748, num_updates=nan\n"
        "epoch 001:     70 / 1042 loss=10.748, wps=0\n"
    )
    path.write_bytes(b"\xff no UTF-8\n" + path.read_bytes())
    log = read_log(path)
    assert [*log["train_inner"]] == [50, 55]
    assert log["train_inner"][50]["loss"] == log["valid"][100]["training_loss"] == 10.748  # and not that of 55
    assert math.isnan(log["train_inner"][50]["gnorm"])
    assert log["valid"][100]["ppl"] == 117.52 and math.isnan(log["valid"][100]["wall"])


def test_lines_that_were_cut_off_are_none(tmp_path):
    """By a full disk or a power failure; the next start goes on behind them. An epoch would be a validation."""
    path, start = tmp_path / "train.log", "2026-07-01 09:00:00 | INFO | fairseq_cli.train | {'_name': None}\n"
    interval = "epoch 001:     50 / 1042 loss=10.7, num_updates=50, kappa_enc1=0.2500/0.7500, train_wall=18, wall=20\n"
    cut = interval.replace("=50,", "=60,").partition("/0.75")[0]
    epoch = "epoch 001 | loss 9.1 | num_updates 55 | lr 0.00"
    deep = f'{{"epoch": {"[" * 100_000}}}\n'
    path.write_text(f'{interval}{cut}{start}{deep}{epoch}{start}{{"epoch": 1, "l{start}')
    found = read_log(path)
    assert {kind: [*points] for kind, points in found.items()} == {"train_inner": [50]}
    assert found["train_inner"][50]["kappa_enc1"] == [0.25, 0.75]


@pytest.mark.parametrize("log_format", ["simple", "json"])
def test_a_validation_on_the_training_set_is_no_epoch(fairseq_log, steps, tmp_path, log_format):
    """--valid-subset valid,train."""
    fairseq_log(tmp_path / "train.log", log_format, steps)
    with (tmp_path / "train.log").open("a") as log:
        validation = {"simple": "epoch 001 | valid on 'train' subset | loss 1 | num_updates 110\n"}
        log.write(validation.get(log_format, '{"epoch": 1, "train_loss": "1", "train_num_updates": "110"}\n'))
    found = read_log(tmp_path / "train.log")
    assert found["train"][110]["loss"] == steps["train"][110]["loss"] and found["valid on train"][110]["loss"] == 1
    assert found["valid on train"][110]["training_loss"] == 8.5  # as for any other set


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        ([(9, 50, 10), (8, 100, 20), (7, 100, 30), (6, 150, 40)], {50: 9, 100: 7, 150: 6}),
        ([(9, 50, 10), (8, 100, 20), (7, 150, 30), (5, 100, 10)], {50: 9, 100: 5}),  # from an earlier checkpoint
        ([(9, 50, 10), (8, 100, 20), (4, 10, 1)], {10: 4}),  # another training
    ],
)
def test_resumed_training(tmp_path, steps, kept):
    """Nor is the clock of what was done again read for a validation."""
    path = tmp_path / "train.log"
    line = '{"epoch": 1, "update": 0.1, "loss": "%d", "num_updates": "%d", "wall": "%d"}\n'
    path.write_text("".join(line % values for values in steps))
    validation = f'{{"epoch": 1, "valid_loss": "5", "valid_num_updates": "{max(kept) + 1}"}}\n'
    path.write_text(path.read_text() + validation)
    found = read_log(path)
    assert {update: values["loss"] for update, values in found["train_inner"].items()} == kept
    assert [math.isnan(values["wall"]) for values in found["valid"].values()] == [True]
