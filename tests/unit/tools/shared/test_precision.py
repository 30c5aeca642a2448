"""nmt-precision: bfloat16 has to gain more than its casts cost."""

import inspect

import pytest
import torch

from user_dir.tools import precision as command
from user_dir.tools.shared import precision


@pytest.mark.parametrize("gain, chosen", [(1.4, "bf16"), (1.2, "off"), (0.5, "off")])
def test_the_faster_one(monkeypatch, gain, chosen):
    monkeypatch.setattr(precision, "seconds", lambda dtype, *_: 1.0 if dtype == torch.float32 else 1 / gain)
    assert precision.faster_precision("cpu") == chosen


def test_the_products_that_are_timed(monkeypatch):
    products = []
    monkeypatch.setattr(precision.timeit, "repeat", lambda product, **_: products.append(product) or [9.0, 2.0, 1.0])
    assert precision.seconds(torch.float32, "cpu", 2) == 1  # the shortest but for the first
    products.clear()
    precision.faster_precision("cpu")
    matrices = [inspect.getclosurevars(product).nonlocals["matrix"] for product in products]
    assert [matrix.dtype for matrix in matrices] == [torch.float32, torch.bfloat16]
    assert {matrix.shape for matrix in matrices} == {(512, 512)}  # larger ones take seconds on a CPU


@pytest.mark.parametrize("gpu, device", [(True, "cuda"), (False, "cpu")])
def test_a_gpu_is_timed_where_there_is_one(monkeypatch, printed, gpu, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(command, "faster_precision", str)
    assert printed(command.main) == f"{device}\n"
