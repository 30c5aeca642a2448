"""python -m user_dir.tools.export_ctranslate2: CTranslate2 gives the translations and probabilities of the model."""

import math

import pytest
import torch

from user_dir.tools import export_ctranslate2 as tool
from user_dir.translator import Translator

from support import EOS, PRE_NORM, PROJECT, randomise

ctranslate2 = pytest.importorskip("ctranslate2")
OLD = PROJECT / "tests/old_checkpoints"
SHARED = {"relative_tables": "shared", "relative_distance": 3}


def exported(path, data, folder):
    tool.main([str(path), "--data", str(data), "--output", str(folder)])
    return ctranslate2.Translator(str(folder), intra_threads=1)


def test_translations_of_a_trained_model(tmp_path):
    path, data = OLD / "vaswani_transformer.pt", OLD / "data-bin"
    translator = Translator(path, data=data)
    rows = [translator.encode(text) for text in (OLD / "test.fr").read_text(encoding="utf-8").splitlines()]
    expected = [found for (found,) in translator.search(rows, beam=4, lenpen=0.6)]
    options = {"beam_size": 4, "length_penalty": 0.6, "return_scores": True, "max_input_length": 0}
    found = exported(path, data, tmp_path / "ct2").translate_batch([row.split() for row in rows], **options)
    assert [translator.decode(" ".join(one.hypotheses[0])) for one in found] == [text for text, _ in expected]
    scores = [one.scores[0] / math.log(2) for one in found]
    assert scores == pytest.approx([score for _, score in expected], abs=1e-3)


@pytest.mark.parametrize("norm", [{}, PRE_NORM], ids=["post", "pre"])
@pytest.mark.parametrize("arch, options", [("vaswani_transformer_base", {}), ("relative_transformer_base", SHARED)])
def test_probabilities(saved, dictionary, tmp_path, arch, options, norm):
    """Of a sentence far longer than the tables."""
    model, path, data = saved(arch, **options, **norm)
    state = torch.load(path, weights_only=False)
    state["model"] = randomise(model, 3).state_dict()
    torch.save(state, path)
    source, target = torch.randint(4, 50, (2, 1, 25))
    model.eval()
    inputs = torch.cat([torch.tensor([[EOS]]), target], dim=1)
    source = torch.cat([source, torch.tensor([[EOS]])], dim=1)
    logits, _ = model(source, torch.tensor([26]), inputs)
    wanted = torch.cat([target, torch.tensor([[EOS]])], dim=1)
    expected = logits.log_softmax(-1).gather(2, wanted[..., None])[0, :, 0].tolist()
    words = [[dictionary[word] for word in row] for row in (source[0, :-1].tolist(), target[0].tolist())]
    (found,) = exported(path, data, tmp_path / "ct2").score_batch([words[0]], [words[1]])
    assert found.log_probs == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    "family, options, words",
    [
        ("relative_transformer", {}, "no table of keys and one of values that all heads of a layer share"),
        ("relative_transformer", {**SHARED, "relative_positions": "keys"}, "no table of keys and one of values"),
        ("relative_transformer", {**SHARED, "absolute_positions": "add"}, "not either distances or sinusoids"),
        ("weighted_transformer", {}, r"branches with weights \(--branched-attention encoder_decoder\)"),
        ("weighted_relative_transformer", SHARED, "branches with weights"),
        ("vaswani_transformer", {"attention_key_dim": 3}, r"keys of another size .*\(--attention-key-dim 3\)"),
        ("vaswani_transformer", {"restricted_attention": "both"}, "self-attention to a neighbourhood"),
        ("vaswani_transformer", {"encoder_normalize_before": True}, "another --…-normalize-before in the decoder"),
    ],
)
def test_what_it_does_not_compute(saved, tmp_path, family, options, words):
    _, path, data = saved(f"{family}_base", **options)
    with pytest.raises(
        SystemExit, match=f"checkpoint.pt has .*{words}.* which CTranslate2 does not compute: translate"
    ):
        exported(path, data, tmp_path / "ct2")
    assert not [*tmp_path.glob("ct2*")]


def test_a_folder_that_exists(saved, tmp_path):
    _, path, data = saved("vaswani_transformer_base")
    (tmp_path / "ct2").mkdir()
    with pytest.raises(SystemExit, match="ct2 exists: remove it, or name another folder"):
        exported(path, data, tmp_path / "ct2")
