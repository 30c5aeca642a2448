"""python -m user_dir.tools.extend_vocabulary: rows for new words, and a training that goes on with other text."""

import re
import shutil

import pytest
import torch
from fairseq.data import Dictionary

from user_dir.errors import InputError
from user_dir.tools import extend_vocabulary as tool
from user_dir.translator import Translator

from support import PROJECT, change, train

MATRICES = ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection")


@pytest.fixture
def longer(tmp_path):
    """longer(data, counts): a data-bin folder with so many more words in each language."""

    def longer(data, counts, first=0):
        folder = shutil.copytree(data, tmp_path / f"longer by {counts['src']}")
        for language, count in counts.items():
            path = folder / f"dict.{language}.txt"
            words = Dictionary.load(str(path)).symbols[4:]
            words[:first] = reversed(words[:first])
            path.write_text("".join(f"{word} 1\n" for word in [*words, *(f"{data.name}{n}" for n in range(count))]))
        return folder

    return longer


def extended(path, data, new, *options):
    tool.main([*map(str, [path, "--data", new, "--old", data, "--output", path.parent / "extended.pt", *options])])
    return torch.load(path.parent / "extended.pt")


def matrices(state):
    return [state["model"][f"{name}.weight"] for name in MATRICES]


@pytest.mark.parametrize("sharing", ["share_all_embeddings", "share_decoder_input_output_embed", None])
def test_old_rows_stay_and_new_ones_are_fairseqs(saved, longer, sharing):
    options = {sharing: True} if sharing else {}
    model, path, data = saved("vaswani_transformer_tiny", encoder_embed_dim=64, decoder_embed_dim=64, **options)
    counts = {"src": 400, "tgt": 400 if sharing == "share_all_embeddings" else 240}
    state = extended(path, data, longer(data, counts))
    before = torch.load(path)
    for old, new, language in zip(matrices(before), matrices(state), ("src", "tgt", "tgt")):
        assert torch.equal(new[: len(old)], old) and len(new) == len(old) + counts[language]
        rows = new[len(old) :]
        assert abs(rows.mean()) < 0.005 and rows.std().item() == pytest.approx(64**-0.5, rel=0.05)
    places = [matrix.data_ptr() for matrix in matrices(state)]
    assert len({*places}) == {"share_all_embeddings": 1, "share_decoder_input_output_embed": 2, None: 3}[sharing]
    assert places[1] == places[2] or sharing is None
    for name in {*before["model"]} - {f"{name}.weight" for name in MATRICES}:
        assert torch.equal(state["model"][name], before["model"][name])


@pytest.mark.parametrize("options, older", [({"share_all_embeddings": True}, None), ({}, "decoder.embed_out")])
def test_the_projection_of_older_files(saved, longer, options, older):
    """fairseq loads them: it is the decoder's embeddings, or has another name."""
    _, path, data = saved("vaswani_transformer_tiny", **options)
    state = torch.load(path)
    before = state["model"].pop("decoder.output_projection.weight")
    torch.save(state | {"model": state["model"] | ({older: before} if older else {})}, path)
    found = extended(path, data, longer(data, {"src": 8, "tgt": 8}))
    assert torch.equal(matrices(found)[2][:-8], before) and older not in found["model"]
    assert torch.equal(*matrices(found)[1:]) == (older is None)


@pytest.mark.parametrize("others", [["decoder.fc_out.weight"], ["decoder.self_attn.", "decoder.adaptive_softmax.head"]])
def test_another_output_layer_is_refused(others):
    """As of fairseq's LSTM, or of --adaptive-softmax-cutoff: it would keep the old number of words."""
    model = {name: torch.ones(4, 2) for name in (*[f"{name}.weight" for name in MATRICES[:2]], *others)}
    with pytest.raises(InputError, match="decoder.output_projection.weight is missing: name a Transformer"):
        tool.extend(model, [4, 4], [1, 1], seed=1)


def test_the_seed_decides(saved, longer):
    _, path, data = saved("vaswani_transformer_tiny")
    new = longer(data, {"src": 8, "tgt": 8})
    first, second, third = (matrices(extended(path, data, new, "--seed", seed))[0] for seed in (1, 1, 2))
    assert torch.equal(first, second) and not torch.equal(first, third)


def test_what_is_refused(saved, longer, refusal, tmp_path):
    _, path, data = saved("vaswani_transformer_tiny")
    output = ["--output", tmp_path / "extended.pt"]
    assert "as it is" in refusal(tool.main, path, "--data", data, "--old", data, *output)
    other = longer(data, {"src": 8, "tgt": 8}, first=3)
    assert "--like" in refusal(tool.main, path, "--data", other, "--old", data, *output)
    longest = longer(other, {"src": 16, "tgt": 16})
    assert "--old" in refusal(tool.main, path, "--data", longest, "--old", other, *output)
    assert "dict.src.txt" in refusal(tool.main, path, "--data", tmp_path, "--old", data, *output)
    new = longer(data, {"src": 4, "tgt": 4})
    assert "is the input" in refusal(tool.main, path, "--data", new, "--old", data, "--output", path)
    torch.save(torch.load(path) | {"task_state": {"dictionaries": ["of", "others"]}}, path)
    assert "other dictionaries than" in refusal(tool.main, path, "--data", new, "--old", data, *output)
    change(path, task__data="nowhere/data-bin")
    refusal(tool.main, path, "--data", data, *output, match=r"nowhere/data-bin, .*: name .*\(--old\)")
    assert not (tmp_path / "extended.pt").exists()


def test_from_one_text_to_another(command, tmp_path):
    """Prepared, trained, prepared again with new characters, extended, trained further, translated."""

    def prepared(name, sentences, *options):
        for language in ("fr", "en"):
            lines = [f"{sentence} {number}\n" for number in range(60) for sentence in sentences]
            (tmp_path / f"text.{language}").write_text("".join(lines), encoding="utf-8")
        given = ["--train", "text.fr", "text.en", "--held-out", "10", "--output", name, "--workers", "1", *options]
        command("python", PROJECT / "data-prep/prepare.py", *given, cwd=tmp_path)
        return tmp_path / name / "data-bin"

    common = ("--max-update", "4", "--save-interval-updates", "2", "--disable-validation")
    old = prepared("old", ["le chat", "la mer"], "--source-lang", "fr", "--target-lang", "en", "--bpe-operations", "20")
    train(command, old, "vaswani_transformer", tmp_path / "first", *common)
    new = prepared("new", ["le chat 漢", "字 la mer"], "--like", "old", "--new-characters")
    first, longer = tmp_path / "first/checkpoint_last.pt", tmp_path / "extended.pt"
    options = [*common, "--finetune-from-model", first]
    refused = train(command, new, "vaswani_transformer", tmp_path / "no", *options, ok=False)
    assert refused.returncode != 0 and "nmt-extend-vocabulary" in refused.stderr
    said = command("python", "-m", "user_dir.tools.extend_vocabulary", first, "--data", new, "--output", longer).stdout
    count = len(Dictionary.load(str(new / "dict.fr.txt"))) - len(Dictionary.load(str(old / "dict.fr.txt")))
    assert f"{count} more entries in fr and {count} more entries in en" in said
    done = train(command, new, "vaswani_transformer", tmp_path / "second", *common, "--finetune-from-model", longer)
    assert re.search(r"loading pretrained model.*extended.pt", done.stdout + done.stderr)
    assert torch.load(tmp_path / "second/checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == 4
    for path in (longer, tmp_path / "second/checkpoint_last.pt"):
        translator = Translator(path)
        row = translator.binarise(translator.encode("le chat 漢"))
        assert translator.data == new and translator.task.source_dictionary.unk() not in row
        assert len(translator.translate(["le chat 漢"])) == 1
