"""Refuses a fairseq with which our models would be wrong, and lets torch read fairseq's checkpoints."""

import argparse
import importlib.util
import pathlib

import numpy as np
import torch


def refuse_bypassing_fairseq() -> None:
    """Raises ImportError for a fairseq that replaces custom encoder layers when it generates.

    fairseq 0.12.2's encoder layers copy their weights into torch's fused kernel after a checkpoint is loaded, and skip
    the attention of a subclass: training looks right and translations are wrong (fairseq issue 4740). The version
    number does not tell (fairseq's repaired main says 0.12.2, too), so the source is searched. It is not imported,
    because that version cannot be imported on Python 3.11.
    """
    package = importlib.util.find_spec("fairseq")
    layer = pathlib.Path(package.origin).parent / "modules" / "transformer_layer.py"
    if any(name in layer.read_text() for name in ("can_use_fastpath", "load_to_BT")):
        raise ImportError(
            f"the fairseq in {layer.parents[1]} skips custom encoder layers when it generates, so translations would "
            "be wrong: run pip uninstall fairseq && pip install fairseq-fixed==0.12.3.1"
        )


def allow_fairseq_checkpoints() -> None:
    """Allows torch.load the other contents of fairseq's translation checkpoints: argparse.Namespace and numpy arrays.

    The arrays hold the counts of --eval-bleu. torch ≥ 2.6 loads weights only, and this must remain so: a foreign
    checkpoint must not be able to run code.
    """
    reconstruct = np.zeros(1).__reduce__()[0]  # its module depends on the version of numpy
    types = [type(np.dtype(name)) for name in ("int64", "float64")]
    torch.serialization.add_safe_globals([argparse.Namespace, reconstruct, np.ndarray, np.dtype, *types])
