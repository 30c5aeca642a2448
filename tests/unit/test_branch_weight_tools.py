"""plot_branch_weights and ablate_branch_weights: what they read, draw and replace; bad input is one line."""

import logging
import math
import re

import pytest
import torch
from fairseq.data import indexed_dataset
from fairseq.logging import metrics, progress_bar
from sacrebleu.metrics import BLEU

from support import write_preparation

pytest.importorskip("matplotlib")

from user_dir.branch_log import BranchLog, branched_blocks  # noqa: E402
from user_dir.tools import ablate_branch_weights as ablation  # noqa: E402
from user_dir.tools import plot_branch_weights as plot  # noqa: E402


@pytest.fixture
def trained(saved):
    """trained(arch, **options): as `saved`, with random branch weights that are on the simplex."""

    def trained(arch, **options):
        model, path, data = saved(arch, **options)
        for block in branched_blocks(model).values():
            ablation.replace(block, ablation.random(7))
        state = torch.load(path)
        torch.save({**state, "model": model.state_dict()}, path)
        return model, path, data

    return trained


@pytest.mark.parametrize("family", ["weighted_transformer", "weighted_relative_transformer"])
@pytest.mark.parametrize("options, columns", [
    ({}, ["encoder self-attention", "encoder–decoder attention"]),
    ({"branched_attention": "both", "branch_weights": "softmax"}, ["encoder self-attention", "decoder self-attention", "encoder–decoder attention"]),
])  # fmt: skip
def test_read_run(trained, tmp_path, family, options, columns):
    for updates in (900, 1000):
        model, _, _ = trained(f"{family}_base", updates=updates, name=f"checkpoint_1_{updates}.pt", **options)
    found = plot.read_run(tmp_path)
    assert {column for column, _ in found} == {f"{column}: {letter}" for column in columns for letter in "κα"}
    assert {layer for _, layer in found} == {1, 2} and len(found) == 4 * len(columns)
    for points in found.values():
        assert sorted(points) == [900, 1000]
        for weights in points.values():
            assert sum(weights) == pytest.approx(1)
    assert found["encoder self-attention: α", 2][900] == pytest.approx(model.encoder.layers[1].self_attn.kappa_alpha()[1].tolist())


@pytest.mark.parametrize("log_format", ["simple", "json"])
@pytest.mark.parametrize("family", ["weighted_transformer", "weighted_relative_transformer"])
@pytest.mark.parametrize("options", [{}, {"branched_attention": "both", "branch_weights": "softmax"}, {"branches": 1}], ids=str)
def test_log_and_checkpoints_have_the_same_weights(build, trained, tmp_path, log_format, family, options):
    """The log as fairseq's own classes write it while a model trains; it is drawn from wherever it says branch weights."""
    arch = f"{family}_base"
    trained(arch, updates=200, name="checkpoint_last.pt", **options)
    from_checkpoint = plot.read_run(tmp_path)
    model = build(arch, **options)
    model.load_state_dict(torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)["model"])
    write_log(tmp_path / "train.log", log_format, 200, logged(model))
    for run in (tmp_path, tmp_path / "train.log"):
        from_log = plot.read_run(run)
        assert list(from_log) == list(from_checkpoint)
        for panel, points in from_checkpoint.items():
            assert list(from_log[panel]) == [200] and from_log[panel][200] == pytest.approx(points[200], abs=6e-5)


def logged(model):
    """What fairseq's log shows of `model` at the end of an update."""
    with metrics.aggregate() as values:
        BranchLog(model).follow()
        return values.get_smoothed_values()


def write_log(path, log_format, updates, values):
    handler = logging.FileHandler(path, mode="w")
    progress_bar.logger.addHandler(handler)
    progress_bar.logger.setLevel(logging.INFO)
    bar = progress_bar.progress_bar([0] * 300, log_format=log_format, log_interval=100, epoch=1)
    next(iter(bar))
    bar.log({**values, "num_updates": updates, "wall": 7.0}, tag="train_inner", step=updates)
    progress_bar.logger.removeHandler(handler)
    handler.close()


def test_a_log_without_branch_weights_does_not_hide_the_checkpoints(trained, tmp_path):
    trained("weighted_transformer_base", name="checkpoint_last.pt")
    found = plot.read_run(tmp_path)
    for text in ("", "hello\n", "epoch 001:    100 / 300 loss=3, kappa_min=0.1, num_updates=100\n"):
        (tmp_path / "train.log").write_text(text)
        assert plot.read_run(tmp_path) == found


def test_picture(trained, tmp_path, capsys):
    for updates in (50, 100, 150):
        trained("weighted_transformer_base", updates=updates, name=f"checkpoint_1_{updates}.pt")
    plot.main([str(tmp_path), "--output", str(tmp_path / "weights.png")])
    assert (tmp_path / "weights.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == f"{tmp_path / 'weights.png'}\n"


def test_lines(tmp_path):
    found = {("encoder self-attention: κ", layer): {u: [w + layer * u for w in (0.1, 0.2, 0.7)] for u in (0, 100)} for layer in (1, 2)}
    figure = plot.draw(found, "")
    for layer, axis in enumerate(figure.axes, 1):
        lines = [line for line in axis.lines if line.get_label().startswith("branch")]
        assert [list(line.get_xdata()) for line in lines] == [[0, 100]] * 3
        for line, weight in zip(lines, (0.1, 0.2, 0.7)):
            assert list(line.get_ydata()) == pytest.approx([weight, weight + 100 * layer])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["branch 1", "branch 2", "branch 3"]


@pytest.mark.parametrize("mistake, words", [
    ("plain", "checkpoint.pt has no branch weights .*name a training of a weighted_transformer"),
    ("empty", r"holds no checkpoint\*.pt, and no train.log with branch weights: name the --save-dir"),
    ("garbage", "is not a fairseq checkpoint"),
    ("log", "a.log has no branch weights .*name a training of a weighted_transformer"),
    ("no log", "a.log holds no line of a training"),
    ("nowhere", "No such file .*nowhere.log"),
])  # fmt: skip
def test_bad_run_is_one_line(saved, tmp_path, mistake, words):
    run = {"log": "a.log", "no log": "a.log", "nowhere": "nowhere.log"}.get(mistake, ".")
    if mistake == "plain":
        saved("vaswani_transformer_base")
    if mistake == "garbage":
        (tmp_path / "checkpoint.pt").write_text("hello")
    if mistake == "log":
        write_log(tmp_path / "a.log", "simple", 100, {"loss": 3.5})
    if mistake == "no log":
        (tmp_path / "a.log").write_text("hello")
    with pytest.raises(SystemExit, match=words) as stop:
        plot.main([str(tmp_path / run), "--output", str(tmp_path / "a.png")])
    assert "\n" not in str(stop.value) and not any(tmp_path.glob("a.png*"))


@pytest.mark.parametrize("weights", ["simplex", "softmax"])
def test_replace(build, weights):
    block = build("weighted_transformer_base", branch_weights=weights).encoder.layers[0].self_attn
    ablation.replace(block, ablation.uniform)
    for values in block.kappa_alpha():
        torch.testing.assert_close(values.detach(), torch.full((4,), 0.25))
    ablation.replace(block, ablation.random(3))
    kappa, alpha = (values.detach().clone() for values in block.kappa_alpha())
    for values in (kappa, alpha):
        torch.testing.assert_close(values.sum(), torch.tensor(1.0))
        assert values.min() > 0 and values.std() > 0.01
    assert not torch.allclose(kappa, alpha)
    ablation.replace(block, ablation.random(3))
    torch.testing.assert_close(block.kappa.softmax(0) if weights == "softmax" else block.kappa, kappa)


def test_random_weights_are_uniform_on_the_simplex():
    """Mean 1/M and variance (M − 1) / (M² (M + 1)), those of Dirichlet(1, …, 1)."""
    draw = ablation.random(1)
    points = torch.stack([draw(4) for _ in range(20_000)])
    torch.testing.assert_close(points.mean(0), torch.full((4,), 0.25), rtol=0, atol=0.01)
    torch.testing.assert_close(points.var(0), torch.full((4,), 3 / 80), rtol=0.05, atol=0)


@pytest.fixture
def subset(trained, dictionary, tmp_path):
    """subset(): model, checkpoint and data folder with a test set of eleven pairs, whose text lies where prepare.py puts it."""

    def subset(**preparation):
        model, path, data = trained("weighted_transformer_base")
        lines = [" ".join(f"w{(i * j) % 46}" for j in range(1, 4 + i % 5)) for i in range(11)]
        write_preparation(data, **preparation)
        (tmp_path / "raw").mkdir()
        for language in ("src", "tgt"):
            (tmp_path / "raw" / f"test.{language}").write_text("".join(f"{line.capitalize()}\n" for line in lines))
            prefix = str(data / f"test.src-tgt.{language}")
            builder = indexed_dataset.make_builder(f"{prefix}.bin", impl="mmap", vocab_size=len(dictionary))
            for line in lines:
                builder.add_item(dictionary.encode_line(line))
            builder.finalize(f"{prefix}.idx")
        return model, path, data, [dictionary.encode_line(line).long() for line in lines]

    return subset


def loss_by_equation(model, sentences):
    """Label-smoothed cross-entropy in bits a token, one sentence at a time: (1 − ε) nll + ε · mean of the others' −log p."""
    total = 0.0
    for tokens in sentences:
        log_p = model(tokens[None], torch.tensor([len(tokens)]), tokens.roll(1)[None])[0][0].log_softmax(-1).double()
        right = log_p.gather(1, tokens[:, None])[:, 0]
        total -= (0.9 * right + 0.1 * (log_p.sum(-1) - right) / (log_p.size(1) - 1)).sum().item()
    return total / sum(map(len, sentences)) / math.log(2)


def test_table(subset, capsys):
    model, path, data, sentences = subset()
    ablation.main([str(path), str(data), "--seeds", "1", "2"])
    _, *rows, settings = capsys.readouterr().out.splitlines()
    names, _, losses, _ = zip(*(re.fullmatch(r"(.+?) +([\d.]+) +([\d.]+) +([\d.]+)", row).groups() for row in rows))
    assert names == ("learned", "uniform (1/M)", "random, seed 1", "random, seed 2")
    assert "11 sentences" in settings and "tok:13a" in settings
    for loss, draw in zip(losses, (None, ablation.uniform, ablation.random(1), ablation.random(2))):
        for block in branched_blocks(model).values() if draw else []:
            ablation.replace(block, draw)
        assert float(loss) == pytest.approx(loss_by_equation(model, sentences), abs=1e-3)


@pytest.mark.parametrize("form", ["lower-cased", "published", "as text"])
def test_scored_as_score_does(subset, dictionary, capsys, monkeypatch, form):
    """Tokens against tokens where no text as published belongs to the data: lower-cased, or not prepared by data-prep."""
    _, path, data, sentences = subset(lowercase=form == "lower-cased")
    if form == "published":
        (data.parent / "manifest.json").unlink()
    if form != "as text":
        (data.parent / "raw/test.tgt").unlink()  # not read
    texts = [dictionary.string(sentence) for sentence in sentences]
    found = [*texts[:-3], "w1 w2 w3 w4 w5", "W4 w9 w16 w25 w36", "<unk>"]
    monkeypatch.setattr(ablation, "evaluate", lambda *arguments: (found, 1.0, 2.0))
    ablation.main([str(path), str(data), "--seeds"])
    _, row, *_, settings = capsys.readouterr().out.splitlines()
    bleu = float(row.split()[1])
    if form == "as text":
        expected = BLEU().corpus_score(found, [[text.capitalize() for text in texts]]).score
        assert "sacreBLEU" in settings and "tok:13a" in settings
    else:
        expected = BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(found, [texts]).score
        assert "BLEU of tokens" in settings and "tok:none" in settings
    assert 20 < bleu < 95 and bleu == pytest.approx(expected, abs=0.05)


def test_published_data_have_no_text_to_name(subset, capsys):
    _, path, data, _ = subset()
    (data.parent / "manifest.json").unlink()
    with pytest.raises(SystemExit, match="was not prepared by data-prep.*leave --reference out"):
        ablation.main([str(path), str(data), "--reference", str(data.parent / "raw/test.tgt")])


@pytest.mark.parametrize("mistake, words", [
    ("plain", "no branch weights .*name a checkpoint of a weighted_transformer"),
    ("lines", "test.tgt has 10 lines and test of .* 11 sentences: name its text with --reference"),
    ("subset", "Dataset not found: valid"),
    ("reference", "test.tgt cannot be read: No such file"),
])  # fmt: skip
def test_bad_ablation_is_one_line(saved, subset, tmp_path, mistake, words):
    path, data = saved("vaswani_transformer_base")[1:] if mistake == "plain" else subset()[1:3]
    reference = tmp_path / "raw/test.tgt"
    if mistake == "lines":
        reference.write_text("\n".join(reference.read_text().splitlines()[:10]) + "\n")
    if mistake == "reference":
        reference.unlink()
    more = ["--subset", "valid", "--reference", str(reference)] if mistake == "subset" else []
    with pytest.raises(SystemExit, match=words) as stop:
        ablation.main([str(path), str(data), *more])
    assert "\n" not in str(stop.value) and str(stop.value).startswith("ablate_branch_weights: ")
