"""κ and α in fairseq's log: as the last update left them, fetched from the device when a line is written."""

import math

import pytest
import torch
from fairseq.logging import metrics

from user_dir.weighted.heads import branched_blocks

from support import families_with


@pytest.mark.parametrize("family", families_with("branched_attention"))
def test_branch_weights_are_looked_at_only_when_a_line_is_written(build, family, monkeypatch):
    """fairseq-train writes one after some updates: then it has the weights as the last update left them."""
    model = build(f"{family}_base", branched_attention="encoder_decoder").train()
    model.branch_training.adopted = True
    blocks = ("enc1", "enc2", "encdec1", "encdec2")
    names = [f"{weights}_{block}" for block in blocks for weights in ("kappa", "alpha")]
    fetched = []
    tensors = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: fetched.append(tensor.shape) or tensors(tensor))
    with metrics.aggregate() as log:
        for update in range(3):
            for _ in range(2):  # micro-batches
                model.set_num_updates(update)
            weights = torch.tensor([0.1 * update, 0.4 - 0.1 * update, 0.25, 0.35])
            for block in branched_blocks(model).values():
                block.kappa.data, block.alpha.data = weights, weights.flip(0)
            if update == 1:
                continue
            assert not fetched
            values = log.get_smoothed_values()
            assert len(fetched) == 1  # all at once
            fetched.clear()
            assert list(values) == [name + ending for name in names for ending in ("", "_entropy")]
            text = "/".join(f"{weight:.4f}" for weight in weights)
            texts = {"kappa": text, "alpha": "/".join(reversed(text.split("/")))}
            assert [values[name] for name in names] == [texts[name.partition("_")[0]] for name in names]
            entropy = -(weights * weights.clamp(min=1e-9).log()).sum().item()
            for name in names:  # numbers, which TensorBoard draws
                assert values[f"{name}_entropy"] == pytest.approx(entropy, abs=1e-3)
            assert all(len(name) < 26 for name in values)


def test_encoder_and_decoder_may_have_other_numbers_of_branches(build):
    model = build("weighted_transformer_base", decoder_attention_heads=2)
    with metrics.aggregate() as log:
        model.branch_log.follow()
        values = log.get_smoothed_values()
    assert (values["kappa_enc1"], values["alpha_dec2"]) == ("/".join(["0.2500"] * 4), "0.5000/0.5000")
    assert values["alpha_enc2_entropy"] == pytest.approx(math.log(4), abs=1e-3)
    assert values["kappa_dec1_entropy"] == pytest.approx(math.log(2), abs=1e-3)
