"""A model with κ and α that trains in a moment, and its optimizer."""

import torch
from fairseq import optim
from omegaconf import OmegaConf

from user_dir.weighted.training import BranchTraining

import equations

BRANCH_SCALE = (512 / 6) ** -0.5


class Branched(torch.nn.Module):
    """Two blocks of four branches, and a matrix."""

    def __init__(self, simplex=True):
        super().__init__()
        torch.manual_seed(1)
        self.matrix = torch.nn.Parameter(torch.randn(4, 4))
        self.kappa, self.alpha = (torch.nn.ParameterList([torch.full((4,), 0.25) for _ in range(2)]) for _ in "κα")
        self.weights = BranchTraining(lr_scale=BRANCH_SCALE, simplex=simplex)
        for parameter in self.branches():
            parameter.param_group = self.weights

    def branches(self):
        return [*self.kappa, *self.alpha]

    def forward(self, x):  # [batch, 4]
        for kappa, alpha in zip(self.kappa, self.alpha):
            x = (x @ self.matrix * kappa).relu() * alpha + x
        return x

    def loss(self, seed):
        """The loss of a random batch."""
        generator = torch.Generator().manual_seed(seed)
        x, target = torch.randn(2, 8, 4, generator=generator).to(self.matrix.dtype)
        return (self(x) - target).float().pow(2).mean()


def adam_options(**options):
    """The options of --optimizer adam, as fairseq-train passes them."""
    adam = {"_name": "adam", "lr": [0.01], "adam_betas": "(0.9, 0.98)", "adam_eps": 1e-9, "weight_decay": 0.1}
    return OmegaConf.create({**adam, "tpu": False, **options})


def fused_adam_options(**options):
    training = {"max_update": 20000, "fp16": False, "amp": False}
    return adam_options(**{"_name": "fused_adam", **training, **options})


def fused_adam(model, **options):
    return optim.build_optimizer(fused_adam_options(**options), list(model.parameters()))


def branch_rate(t, warmup=400):
    """The learning rate of κ and α of `Branched` in update t."""
    return equations.branch_learning_rate(t, 512, 6, warmup)


def update(model, optimizer, seed):
    optimizer.zero_grad()
    optimizer.backward(model.loss(seed))
    optimizer.step()


def copies(parameters):
    return [parameter.detach().clone() for parameter in parameters]


def assert_on_simplex(vectors, tolerance=1e-6):
    for vector in vectors:
        assert vector.min() >= 0
        assert abs(vector.double().sum().item() - 1) <= tolerance
