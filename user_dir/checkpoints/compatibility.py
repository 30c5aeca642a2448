"""What the installed fairseq and torch need, or must not do, before our models can be trusted."""

import argparse
import importlib.util
import pathlib

import numpy as np
import torch


class UnsuitableFairseq(ImportError):
    """The installed fairseq would compute something else than the model that was trained."""


def refuse_bypassing_fairseq() -> None:
    """Raises UnsuitableFairseq for a fairseq that replaces custom encoder layers when it generates.

    fairseq 0.12.2's encoder layers copy their weights into torch's fused kernel once a checkpoint is loaded, so that a
    subclass's own attention is skipped: training looks right and translations are wrong (fairseq issue 4740). The
    version number cannot tell (the repaired code says 0.12.2 too), so the source is searched; it is not imported,
    because that version does not import on Python 3.11.
    """
    package = importlib.util.find_spec("fairseq")
    if package is None:
        raise UnsuitableFairseq("fairseq is not installed. Install it with: pip install fairseq-fixed==0.12.3.1")
    layer = pathlib.Path(package.origin).parent / "modules" / "transformer_layer.py"
    if any(name in layer.read_text() for name in ("can_use_fastpath", "load_to_BT")):
        raise UnsuitableFairseq(
            f"The fairseq in {layer.parents[1]} skips custom encoder layers when it generates, so translations would "
            "be wrong. Replace it with: pip uninstall fairseq && pip install fairseq-fixed==0.12.3.1"
        )


def allow_fairseq_checkpoints() -> None:
    """Allows what fairseq's translation checkpoints hold besides tensors: argparse.Namespace, and arrays of numbers.

    The arrays are counts of --eval-bleu. torch ≥ 2.6 loads weights only, and should: a checkpoint from somewhere else
    must not be able to run code.
    """
    reconstruct = np.zeros(1).__reduce__()[0]  # in another module in each version of numpy
    types = [type(np.dtype(name)) for name in ("int64", "float64")]
    torch.serialization.add_safe_globals([argparse.Namespace, reconstruct, np.ndarray, np.dtype, *types])
