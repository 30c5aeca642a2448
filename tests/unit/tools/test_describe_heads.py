"""python -m user_dir.tools.describe_heads: means over the queries of a set, against a plain loop in float64."""

import math
import os
import shutil

import pytest
import torch
from fairseq.data import Dictionary

from user_dir.serving.translator import Translator
from user_dir.tools import describe_heads as tool
from user_dir.tools.shared.attentions import ATTENTIONS, attention_weights, attentions_of
from user_dir.tools.shared.examined import load_sentences

from support import OLD, PROJECT, TWO_FAMILIES, change

DELIMITERS = {"</s>", ".", ",", "!", "?", "'"}  # of its text


def by_loop(translator, dataset):
    """The columns, a sentence, head, query and key at a time."""
    (model,), task = translator.models, translator.task
    means = {}
    for name in ATTENTIONS:
        layers, aligned = attentions_of(model, name), name != "encoder-decoder"
        columns, queries = [[[0.0] * 6 for _ in range(4)] for _ in layers], 0
        for number in range(len(dataset)):
            source, target = dataset[number]["source"], dataset[number]["target"]
            own = name == "decoder"
            keys, words = (target.roll(1), task.target_dictionary) if own else (source, task.source_dictionary)
            marked = [words[key].replace("&apos;", "'") in DELIMITERS for key in keys]
            all_weights = attention_weights(model, layers, source, target)
            T, S = all_weights[0].shape[1:]
            queries += T
            for weights, heads in zip(all_weights, columns):
                for rows, column in zip(weights.tolist(), heads):
                    for i, row in enumerate(rows, 1):
                        for j, a in enumerate(row, 1):
                            away = abs(j - i if aligned else j - i * S / T)
                            column[0] += a * away
                            column[1] -= a * math.log2(a) if a else 0
                            column[2] += a if away <= (0 if aligned else 1 + 1e-9) else 0
                            column[3] += a if j == i - 1 else 0
                            column[4] += a if j == i + 1 else 0
                            column[5] += a if marked[j - 1] else 0
        means[name] = torch.tensor(columns, dtype=torch.double) / queries
        if not aligned:
            means[name][..., 3:5] = math.nan
    return means


@pytest.mark.parametrize("family", TWO_FAMILIES)
def test_columns(family):
    """They do not depend on the batch: one sentence, a few of like lengths, all with padding on both sides."""
    translator = Translator(OLD / f"{family}.pt", data=OLD / "data-bin", device="cpu")
    dataset = load_sentences(translator, "test")
    translator.task.target_dictionary.symbols[dataset[0]["target"][0]] = "!"  # else both dictionaries are alike
    assert len({*dataset.src_sizes}) > 3 and len({*dataset.tgt_sizes}) > 3
    expected = by_loop(translator, dataset)
    for batches in ({"batch_size": 1}, {"max_tokens": 40}, {}):
        found = tool.describe(translator, dataset, **batches)
        for name in ATTENTIONS:
            torch.testing.assert_close(torch.stack(found[name]), expected[name], rtol=1e-4, atol=1e-5, equal_nan=True)


def test_delimiters():
    dictionary, yes, no = Dictionary(), ". … @-@ &apos; &quot;@@ « ▁,".split(), "a a. l&apos; 3 $ a@@ ▁a ▁".split()
    for word in (*yes, *no):
        dictionary.add_symbol(word)
    marked = tool.delimiters(dictionary)
    assert [word for word, mark in zip(dictionary.symbols, marked) if mark] == ["</s>", *yes]


def test_table(tmp_path, data, monkeypatch, capsys):
    """The table is that of the training's data, in the batches that are asked for; data-prep need not have made it."""
    (data.parent / "manifest.json").unlink()
    checkpoint = shutil.copy(OLD / "vaswani_transformer.pt", tmp_path)
    change(checkpoint, task__data=str(data))
    seen, describe = [], tool.describe
    monkeypatch.setattr(tool, "describe", lambda *given, **batches: seen.append(batches) or describe(*given, **batches))
    tool.main([checkpoint, "--max-tokens", "40"])
    assert seen == [{"max_tokens": 40}]
    text = capsys.readouterr().out
    head, _, *lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert head == ["attention", "layer", "head", *tool.COLUMNS]
    assert f"| {' | '.join(head)} |\n" in (PROJECT / "user_dir/tools/README.md").read_text(encoding="utf-8")
    translator = Translator(checkpoint, pretokenised=True, device="cpu")
    layers = {name: len(attentions_of(translator.models[0], name)) for name in ATTENTIONS}
    order = [[n, str(layer + 1), str(head)] for n in ATTENTIONS for layer in range(layers[n]) for head in (1, 2, 3, 4)]
    assert [line[:3] for line in lines] == order
    found = describe(translator, load_sentences(translator, "test"), max_tokens=40)
    values = torch.cat([torch.cat(found[name]) for name in ATTENTIONS]).tolist()
    assert [line[3:] for line in lines] == [["" if x != x else f"{x:.2f}" for x in row] for row in values]


@pytest.fixture
def data(tmp_path):
    """A copy of the old checkpoints' data-bin, and of what lies beside it."""
    return shutil.copytree(OLD, tmp_path / "old", ignore=shutil.ignore_patterns("*.pt")) / "data-bin"


SPOILT = [
    (lambda at: os.truncate(at / "test.fr-en.fr.bin", 100), "test.fr-en.fr.bin has 50 of [0-9,]+ subwords: prepare"),
    (lambda at: [path.unlink() for path in at.glob("test.fr-en.en.*")], "has no references: name a --subset"),
]


@pytest.mark.parametrize("spoil, words", SPOILT)
def test_bad_data(refusal, data, spoil, words):
    spoil(data)
    refusal(tool.main, OLD / "vaswani_transformer.pt", "--data", data, match=words)


def test_a_set_that_is_not_there(refusal, data):
    refusal(tool.main, OLD / "vaswani_transformer.pt", "--data", data, "--subset", "nowhere", match="nowhere")


def test_a_sentence_that_is_too_long(refusal, data, monkeypatch):
    monkeypatch.setattr("user_dir.transformer.model.TransformerModel.max_positions", lambda self: (1024, 5))
    words = "sentence 1 of test of .* has 7 and 7 subwords, and the model takes at most 1024 and 5: leave it out"
    refusal(tool.main, OLD / "vaswani_transformer.pt", "--data", data, match=words)
