"""Refuses a fairseq with which our models would be wrong, and lets torch read fairseq's checkpoints."""

import argparse
import importlib.util
import pathlib
import pickle

import numpy as np
import torch


def refuse_bypassing_fairseq() -> None:
    """Raises ImportError where there is no fairseq, or one that replaces custom encoder layers when it generates.

    fairseq 0.12.2's encoder layers copy their weights into torch's fused kernel after a checkpoint is loaded, and skip
    the attention of a subclass: training looks right and translations are wrong (fairseq issue 4740). The version
    number does not tell (fairseq's repaired main says 0.12.2, too), so the source is searched. It is not imported,
    because that version cannot be imported on Python 3.11.
    """
    package = importlib.util.find_spec("fairseq")
    if package is None or package.origin is None:  # a folder of that name
        raise ModuleNotFoundError("fairseq is not installed: pip install fairseq-fixed", name="fairseq")
    layer = pathlib.Path(package.origin).parent / "modules" / "transformer_layer.py"
    if any(name in layer.read_text() for name in ("can_use_fastpath", "load_to_BT")):
        raise ImportError(
            f"the fairseq in {layer.parents[1]} skips custom encoder layers when it generates, so translations would "
            "be wrong: run pip uninstall fairseq && pip install fairseq-fixed==0.12.3.1"
        )


class Counts(np.ndarray):
    """An array in a checkpoint. numpy's own would take any state of a dtype, also one by which numbers are addresses of
    objects, whose code would run."""

    def __new__(cls, *_):
        return super().__new__(cls, 0)

    def __setstate__(self, state):
        version, shape, kind, *content = state
        super().__setstate__((version, shape, kind.dtype, *content))

    def __reduce__(self):
        return np.asarray(self).__reduce__()


class Kind:
    """The dtype of such an array: whole numbers or floats, in this machine's order of bytes."""

    def __init__(self, name, *_):
        if name not in ("i8", "f8"):
            raise pickle.UnpicklingError(f"an array of {name}")
        self.dtype = np.dtype(name)

    def __setstate__(self, state):
        pass


def allow_fairseq_checkpoints() -> None:
    """Allows torch.load the other contents of fairseq's translation checkpoints: argparse.Namespace and numpy arrays.

    The arrays hold the counts of --eval-bleu. torch ≥ 2.6 loads weights only, and this must remain so: a foreign
    checkpoint must not be able to run code.
    """
    # The function that makes an array is in one module of numpy 1, which wrote older files, and in another of numpy 2.
    names = ("numpy.ndarray", "numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct")
    arrays = [(Counts, name) for name in names]
    torch.serialization.add_safe_globals([argparse.Namespace, *arrays, (Kind, "numpy.dtype")])
