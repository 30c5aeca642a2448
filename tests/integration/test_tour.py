"""examples/tour.ipynb: its cells one after the other, with a model that was trained for tests."""

import json

import matplotlib
import torch

from support import PROJECT

CHECKPOINT = "runs/weighted_relative_transformer_tiny.fr-en/average.pt"


def test_every_cell_runs(capsys, monkeypatch):
    matplotlib.use("Agg")
    monkeypatch.chdir(PROJECT)
    monkeypatch.setattr("user_dir.serving.translator.torch_device", lambda name: torch.device(name or "meta"))  # a GPU
    notebook = json.loads((PROJECT / "examples/tour.ipynb").read_text(encoding="utf-8"))
    code = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    assert code.count(CHECKPOINT) == code.count("Translator(checkpoint") == 1
    code = code.replace(CHECKPOINT, "tests/old_checkpoints/weighted_relative_transformer.pt")
    code = code.replace("Translator(checkpoint", 'Translator(checkpoint, data="tests/old_checkpoints/data-bin"')
    cells = {}
    exec(code.replace("J'ouvris la boîte, mais elle était vide.", "Le chat riche n'aime pas le chat !"), cells)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == printed[-1] and printed[0] not in printed[-3:-1]  # learned weights, two others, learned again
    assert sum("κ" in line for line in printed) == 4
    assert [len(figure.axes) for figure in map(cells["plt"].figure, cells["plt"].get_fignums())] == [4, 1]
    cells["plt"].close("all")
