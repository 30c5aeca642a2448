"""The import refuses a fairseq that skips custom layers, and loads checkpoints without running code from them."""

import ast
import importlib.util
import pathlib
import re
import types

import numpy as np
import pytest
import torch

from user_dir.checkpoints.compatibility import refuse_bypassing_fairseq
from user_dir.checkpoints.files import load
from user_dir.errors import InputError

from support import PROJECT


def test_refuses_a_fairseq_with_the_fused_path(tmp_path, command, monkeypatch):
    """The import itself, with such a fairseq first on the path; and by the other name that is searched."""
    (tmp_path / "fairseq/modules").mkdir(parents=True)
    package, layer = tmp_path / "fairseq/__init__.py", tmp_path / "fairseq/modules/transformer_layer.py"
    package.write_text("raise ImportError('does not import on Python 3.11')\n")
    layer.write_text("self.can_use_fastpath = False\n")
    imported = "import user_dir.registration"
    done = command("python", "-c", imported, env={"PYTHONPATH": f"{tmp_path}:{PROJECT}"}, ok=False)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ") and "pip install fairseq-fixed" in last
    assert str(tmp_path / "fairseq") in last
    layer.write_text("self.load_to_BT = False\n")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: types.SimpleNamespace(origin=package))
    with pytest.raises(ImportError, match="pip install fairseq-fixed"):
        refuse_bypassing_fairseq()


@pytest.mark.parametrize("found", [None, types.SimpleNamespace(origin=None)], ids=["nothing", "a folder"])
def test_says_that_fairseq_is_missing(monkeypatch, found):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    with pytest.raises(ModuleNotFoundError, match="fairseq is not installed: pip install fairseq-fixed"):
        refuse_bypassing_fairseq()


@pytest.mark.parametrize(
    ("tools", "heavy"),
    [
        ("score compare plot_training show_progress", "fairseq torch"),
        ("average_checkpoints plot_relative_positions", "fairseq omegaconf"),
    ],
)
def test_tools_that_compute_no_model_start_without_fairseq(command, tools, heavy):
    imports = "".join(f"import user_dir.tools.{tool}; " for tool in tools.split())
    code = f"{imports}import sys; print({{*{heavy.split()}}} & {{*sys.modules}})"
    assert command("python", "-c", code).stdout == "set()\n"


@pytest.mark.parametrize("counts", [np.arange(4), np.ones(4) / 3])
def test_counts_of_eval_bleu_load(tmp_path, counts):
    """With --eval-bleu fairseq's checkpoints hold arrays among the figures of the epoch."""
    torch.save({"extra_state": {"metrics": counts}}, tmp_path / "checkpoint.pt")
    assert np.array_equal(torch.load(tmp_path / "checkpoint.pt")["extra_state"]["metrics"], counts)
    torch.save(torch.load(tmp_path / "checkpoint.pt"), tmp_path / "again.pt")  # which other programs can load
    assert type(torch.load(tmp_path / "again.pt", weights_only=False)["extra_state"]["metrics"]) is np.ndarray


@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_counts_that_another_numpy_wrote(tmp_path, module):
    """numpy 2 has renamed the module. In a file of torch before 1.6 the name can be replaced."""
    torch.save({"counts": np.arange(4)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    written = re.sub(rb"numpy\._?core\.multiarray", module, (tmp_path / "old.pt").read_bytes())
    (tmp_path / "old.pt").write_bytes(written)
    assert torch.load(tmp_path / "old.pt")["counts"].tolist() == [0, 1, 2, 3]


def test_checkpoints_of_torch_before_1_6(tmp_path):
    """Their file cannot be mapped into memory."""
    state = {"model": {"w": torch.ones(2)}, "cfg": {"model": {"arch": "a"}, "task": {}}}
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert load(tmp_path / "old.pt")["model"]["w"].tolist() == [1, 1]
    torch.save({**state, "args": {"arch": "a"}}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(InputError, match="before 1.0: convert it with nmt-convert-checkpoint"):
        load(tmp_path / "old.pt")


def test_parameters_are_read_when_they_are_used(tmp_path):
    torch.save({"model": {"w": torch.ones(2)}, "cfg": {}}, tmp_path / "new.pt")
    state = load(tmp_path / "new.pt")
    assert str(tmp_path / "new.pt") in pathlib.Path("/proc/self/maps").read_text() and state["model"]["w"].sum() == 2


def test_relative_imports_only():
    """A user directory may be copied and renamed; `user_dir` must not be written in it."""
    for file in (PROJECT / "user_dir").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            assert not any(name.split(".")[0] == "user_dir" for name in names), file
