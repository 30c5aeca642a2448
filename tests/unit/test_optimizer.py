"""fused_adam against Adam's equations (Kingma and Ba 2015, algorithm 1; decoupled weight decay) and fairseq's adam."""

import pytest
import torch
from fairseq import optim
from fairseq.optim.adam import FairseqAdamConfig
from omegaconf import OmegaConf

OPTIONS = {"lr": [0.01], "adam_betas": "(0.9, 0.98)", "adam_eps": 1e-9, "weight_decay": 0.1, "tpu": False}


def build(name, parameters, **options):
    cfg = OmegaConf.create({**OmegaConf.to_container(OmegaConf.structured(FairseqAdamConfig())), **OPTIONS, **options, "_name": name})
    return optim.build_optimizer(cfg, parameters)


def gradients():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(3, 4, generator=generator, dtype=torch.double) for _ in range(10)]


def optimise(name):
    parameter = torch.nn.Parameter(torch.ones(3, 4, dtype=torch.double))
    optimizer = build(name, [parameter])
    for gradient in gradients():
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


def test_update_equals_the_equations():
    p, m, v = torch.ones(3, 4, dtype=torch.double), 0, 0
    for t, g in enumerate(gradients(), 1):
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g**2
        p = p - 0.01 * 0.1 * p - 0.01 * (m / (1 - 0.9**t)) / ((v / (1 - 0.98**t)).sqrt() + 1e-9)
    torch.testing.assert_close(optimise("fused_adam"), p)


def test_update_equals_fairseqs():
    torch.testing.assert_close(optimise("fused_adam"), optimise("adam"), atol=1e-6, rtol=0)


def test_refuses_float16_statistics():
    with pytest.raises(NotImplementedError, match="--fp16-adam-stats needs --optimizer adam"):
        build("fused_adam", [torch.nn.Parameter(torch.ones(2))], fp16_adam_stats=True)
