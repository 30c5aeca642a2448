"""python -m user_dir.tools.export_torchscript: a program that computes what the model computes, for any sizes."""

import subprocess
import sys

import pytest
import torch

from user_dir.serving.models import load_models
from user_dir.tools import export_torchscript as tool

from support import PAD, PRE_NORM, PROJECT, randomise

OLD = PROJECT / "tests/old_checkpoints"
SIZES = [(3, 9, 7), (2, 4, 12), (1, 1, 1), (1, 40, 45)]


def assert_same(program, model):
    for batch, source, target in SIZES:
        x, y = torch.randint(4, 50, (batch, source)), torch.randint(4, 50, (batch, target))
        if source > 3:
            x[-1, :2] = y[0, -1] = PAD
        with torch.no_grad():
            logits, _ = model(x, x.ne(PAD).sum(1), y)
        torch.testing.assert_close(program(x, y), logits.log_softmax(-1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "arch, options",
    [
        ("vaswani_transformer_base", {}),
        ("vaswani_transformer_base", {**PRE_NORM, "attention_key_dim": 3, "encoder_learned_pos": True}),
        ("relative_transformer_base", {"relative_distance": 3}),
        ("relative_transformer_big", PRE_NORM),
        ("relative_transformer_base", {"relative_positions": "keys"}),
        ("relative_transformer_base", {"relative_positions": "values"}),
        ("weighted_transformer_base", {}),
        ("weighted_transformer_base", {"branch_residual": "none", "branch_ffn": "shared"}),
        ("weighted_transformer_base", {"branch_residual": "none", "branched_attention": "both"}),
        ("weighted_transformer_base", {"branch_residual": "shared", "branch_weights": "softmax"}),
        ("weighted_relative_transformer_base", PRE_NORM),
    ],
)
def test_log_probabilities(saved, tmp_path, arch, options):
    model, path, data = saved(arch, **options)
    state = torch.load(path, weights_only=False)
    state["model"] = randomise(model, 3).state_dict()
    torch.save(state, path)
    tool.main([str(path), "--data", str(data), "--output", str(tmp_path / "model.ts")])
    assert_same(torch.jit.load(tmp_path / "model.ts"), model.eval())


def test_without_fairseq(tmp_path):
    """Greedy translation by a program that knows torch alone."""
    path, data = OLD / "weighted_relative_transformer.pt", OLD / "data-bin"
    tool.main([str(path), "--data", str(data), "--output", str(tmp_path / "model.ts")])
    (model,), task, _ = load_models([path], data)
    source = task.source_dictionary.encode_line("L&apos; homme aime le garçon .", add_if_not_exist=False).tolist()
    script = """
import sys, torch
files = {"source.txt": "", "target.txt": ""}
program = torch.jit.load(sys.argv[1], _extra_files=files)
words, found = files["target.txt"].decode().splitlines(), [2]
while len(found) < 2 or found[-1] != 2:
    found.append(program(torch.tensor([eval(sys.argv[2])]), torch.tensor([found]))[0, -1].argmax().item())
print(*[words[number - 4] for number in found[1:-1]])
assert "fairseq" not in sys.modules
"""
    words = [sys.executable, "-c", script, tmp_path / "model.ts", str(source)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "The man likes the boy .\n", done.stderr


def test_what_is_refused(saved, tmp_path):
    _, path, data = saved("vaswani_transformer_base", restricted_attention="both", neighbourhood=3)
    with pytest.raises(SystemExit, match="has --restricted-attention both, whose blocks no program .*: use nmt-transl"):
        tool.main([str(path), "--data", str(data), "--output", str(tmp_path / "model.ts")])
    assert not [*tmp_path.glob("model*")]
