"""Shared by the tests of serving: a model with what belongs to it."""

import pytest
import torch

from support import change, write_preparation


@pytest.fixture
def files(saved):
    """files(arch, **preparation): checkpoint and data-bin, with what data-prep leaves beside it.

    Weights are random, and large enough that no two words are alike.
    """

    def files(arch="vaswani_transformer_base", name="checkpoint.pt", **preparation):
        model, path, data = saved(arch, name=name)
        state, random = torch.load(path), torch.Generator().manual_seed(len(name))
        for weight in state["model"].values():
            if weight.dim() == 2:
                weight.normal_(std=0.7, generator=random)
        torch.save(state, path)
        write_preparation(data, **preparation)
        change(path, task__data=str(data))
        return path, data

    return files
