"""The choice of a precision: a matrix product of each is timed."""

import timeit

import torch

# How much faster bfloat16 must be in the product: the rest of a step stays float32, and casts are added.
GAIN = 1.3


def seconds(dtype: torch.dtype, device: torch.device | str, size: int) -> float:
    """The shortest of five products of two [size, size] matrices, after one that is not counted."""
    matrix = torch.randn(size, size, device=device).to(dtype)
    product = lambda: (matrix @ matrix)[0, 0].item()  # noqa: E731  (reading an element waits for the GPU)
    return min(timeit.repeat(product, number=1, repeat=6)[1:])


def faster_precision(device: torch.device | str) -> str:
    """Whether bfloat16 gains on `device` ("cpu", "cuda:1"): "bf16" or "off"."""
    # Where a CPU emulates bfloat16, a larger product takes seconds. On a GPU a small one would be hidden by its launch.
    size = 512 if torch.device(device).type == "cpu" else 4096
    return "bf16" if seconds(torch.float32, device, size) > GAIN * seconds(torch.bfloat16, device, size) else "off"
