"""python -m user_dir.tools.ablate_branch_weights: what it draws anew, its table; bad input is one line."""

import argparse
import math
import re

import pytest
import torch
from fairseq.data import indexed_dataset
from sacrebleu.metrics import BLEU

from user_dir.serving.text_translator import Hypothesis
from user_dir.tools import ablate_branch_weights as ablation
from user_dir.translator import Translator
from user_dir.weighted.heads import branched_blocks

from support import write_preparation


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
def subset(saved, dictionary, tmp_path):
    """subset(): model, checkpoint, data folder with a test set of eleven pairs and raw/ beside it; their tokens."""

    def subset(**preparation):
        model, path, data = saved("weighted_transformer_base", branch_weights_init="random")
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


def loss_by_equation(model, sentences, smoothing=0.1):
    """Label-smoothed cross-entropy in bits a token, by sentences: (1 − ε) nll + ε · mean of the others' −log p."""
    total = 0.0
    for tokens in sentences:
        logits = model(tokens[None], torch.tensor([len(tokens)]), tokens.roll(1)[None])[0][0]
        log_p = logits.log_softmax(-1).double()
        right = log_p.gather(1, tokens[:, None])[:, 0]
        others = (log_p.sum(-1) - right) / (log_p.size(1) - 1)
        total -= ((1 - smoothing) * right + smoothing * others).sum().item()
    return total / sum(map(len, sentences)) / math.log(2)


def test_table(subset, printed):
    model, path, data, sentences = subset()
    (path.parent / "search.json").write_text('{"beam": 2}')
    _, *rows, settings = printed(ablation.main, path, "--data", data, "--seeds", 1, 2).splitlines()
    cells = re.compile(r"(.+?) +([\d.]+) +([\d.]+) +([\d.]+)")
    names, _, losses, perplexities = zip(*(cells.fullmatch(row).groups() for row in rows))
    assert names == ("learned", "uniform (1/M)", "random, seed 1", "random, seed 2")
    assert "11 sentences, beam 2, length penalty 1" in settings and "tok:13a" in settings
    draws = (None, ablation.uniform, ablation.random(1), ablation.random(2))
    for loss, perplexity, draw in zip(losses, perplexities, draws):
        for block in branched_blocks(model).values() if draw else []:
            ablation.replace(block, draw)
        assert float(loss) == pytest.approx(loss_by_equation(model, sentences), abs=1e-3)
        unsmoothed = loss_by_equation(model, sentences, smoothing=0.0)
        assert float(perplexity) == pytest.approx(2**unsmoothed, rel=1e-3)


@pytest.mark.parametrize("form", ["lower-cased", "published", "pretokenised", "as text"])
def test_scored_as_score_does(subset, dictionary, printed, monkeypatch, form):
    """Tokens against tokens if data-prep did not tokenise the data."""
    _, path, data, sentences = subset(lowercase=form == "lower-cased", tokenise=form != "pretokenised")
    in_tokens = form in ("published", "pretokenised")
    if in_tokens:
        (data.parent / "raw/test.tgt").unlink()  # not read
    if form == "published":
        (data.parent / "manifest.json").unlink()
    texts = [dictionary.string(sentence) for sentence in sentences]
    found = [*texts[:-3], "w1 w2 w3 w4 w5", "W4 w9 w16 w25 w36", "<unk>"]
    searched = []

    def beam_search(self, sources, **search):
        assert (search["beam"], search["lenpen"]) == (3, 2)
        searched.append([block.kappa.tolist() for block in branched_blocks(self.models[0]).values()])
        return [[text] for text in found]

    monkeypatch.setattr(Translator, "beam_search", beam_search)
    monkeypatch.setattr(Translator, "hypothesis", lambda self, text: Hypothesis(text, 0.0))
    text = printed(ablation.main, path, "--data", data, "--beam", 3, "--lenpen", 2, "--seeds")
    _, row, *_, settings = text.splitlines()
    learned, uniform = searched  # each row with its own weights
    assert uniform == [[0.25] * 4] * len(uniform) and not [kappa for kappa in learned if kappa == [0.25] * 4]
    bleu = float(row.split()[1])
    if in_tokens:
        expected = BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(found, [texts]).score
        assert "tok:none" in settings
    else:
        lowercase = form == "lower-cased"
        expected = BLEU(lowercase=lowercase).corpus_score(found, [[text.capitalize() for text in texts]]).score
        assert f"case:{'lc' if lowercase else 'mixed'}" in settings and "tok:13a" in settings
    assert 20 < bleu < 95 and bleu == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("tokenise, tokens", [(True, "13a"), (False, "none")])
def test_a_reference_that_is_named(subset, tokenise, tokens):
    """It is text as published, or in tokens if the data are."""
    _, path, data, sentences = subset(tokenise=tokenise)
    named = (data.parent / "raw/test.tgt").rename(data.parent / "named")
    args = argparse.Namespace(reference=named, subset="test")
    metric, references = ablation.scoring(Translator(path, data=data), sentences, args)
    assert references == named.read_text().splitlines() and metric.tokenizer_signature == tokens


def test_an_unknown_word_of_the_reference_matches_nothing(subset, dictionary):
    """Where translations are scored as tokens: <<unk>>, as by fairseq-generate."""
    _, path, data, _ = subset(tokenise=False)
    translator = Translator(path, data=data)
    dataset = type("Dataset", (), {"tgt": [torch.tensor([4, dictionary.unk(), 2])], "__len__": lambda self: 1})()
    args = argparse.Namespace(reference=None, subset="test")
    assert ablation.scoring(translator, dataset, args)[1] == ["w0 <<unk>>"]


@pytest.mark.parametrize(
    "mistake, words",
    [
        ("plain", "no branch weights .*name a checkpoint of a weighted_transformer"),
        ("lines", "test.tgt has 10 lines and test of .* 11 sentences: name its text with --reference"),
        ("subset", "Dataset not found: valid"),
        ("reference", "test.tgt cannot be read: No such file"),
    ],
)
def test_bad_ablation_is_one_line(saved, subset, tmp_path, mistake, words, refusal):
    path, data = saved("vaswani_transformer_base")[1:] if mistake == "plain" else subset()[1:3]
    reference = tmp_path / "raw/test.tgt"
    if mistake == "lines":
        reference.write_text("\n".join(reference.read_text().splitlines()[:10]) + "\n")
    if mistake == "reference":
        reference.unlink()
    more = ["--subset", "valid", "--reference", str(reference)] if mistake == "subset" else []
    refusal(ablation.main, path, "--data", data, *more, match=words)
