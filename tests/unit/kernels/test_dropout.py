"""Dropout from few random words: its distribution, its derivative, its seed, and where it acts."""

import pytest
import torch
from fairseq.modules import FairseqDropout

from user_dir.kernels.dropout import Dropout, FewWordsDropout


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.999, 2**-16])
def test_as_many_are_dropped_as_asked(p):
    """Within five standard deviations of four million draws; what is kept is scaled so that the mean stays."""
    torch.manual_seed(1)
    x = torch.ones(4_000_003)  # so many that 2^-16 shows
    exact = round(p * 2**16) / 2**16
    y = FewWordsDropout.apply(x, p)
    kept = y != 0
    assert abs((~kept).double().mean().item() - exact) < 5 * (exact * (1 - exact) / len(x)) ** 0.5
    torch.testing.assert_close(y[kept], torch.full_like(y[kept], 1 / (1 - exact)))


def test_draws_are_independent_of_their_neighbours():
    """Correlations of 1,000,000 masks at distances 1 to 9, which cross words, are chance's."""
    torch.manual_seed(1)
    mask = (FewWordsDropout.apply(torch.ones(1_000_000), 0.5) == 0).double() - 0.5
    for distance in range(1, 10):
        assert abs((mask[distance:] * mask[:-distance]).mean().item()) < 0.25 * 5 / 1000


@pytest.mark.parametrize("dtype", [torch.double, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5, 7), (1,), (0, 4)])
def test_derivative_has_the_same_mask(shape, dtype):
    torch.manual_seed(1)
    x = torch.randn(shape, dtype=dtype).requires_grad_()
    y = FewWordsDropout.apply(x, 0.5)
    direction = torch.randn_like(y)
    (gradient,) = torch.autograd.grad((y * direction).sum(), x)
    assert y.dtype == dtype and torch.equal(y, x * (y != 0) * 2)
    assert torch.equal(gradient, direction * (y != 0) * 2)


def test_everything_and_nothing():
    x = torch.randn(4, 100)
    assert torch.equal(FewWordsDropout.apply(x, 0.0), x)
    assert torch.equal(FewWordsDropout.apply(x, 1.0), torch.zeros_like(x))


def test_a_seed_gives_one_mask_and_a_state_goes_on():
    x = torch.ones(1001)
    torch.manual_seed(3)
    first = FewWordsDropout.apply(x, 0.3)
    state = torch.get_rng_state()
    second = FewWordsDropout.apply(x, 0.3)
    torch.manual_seed(3)
    assert torch.equal(FewWordsDropout.apply(x, 0.3), first) and not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(FewWordsDropout.apply(x, 0.3), second)


@pytest.mark.parametrize("retained", [False, True])
def test_acts_in_training_and_where_it_is_retained(build, retained):
    model = build("vaswani_transformer_base", dropout=0.3)
    modules = [module for module in model.modules() if isinstance(module, FairseqDropout)]
    assert modules and all(isinstance(module, Dropout) for module in modules)
    module, x = model.encoder.dropout_module, torch.ones(1000)
    module.apply_during_inference = retained
    assert (module(x) == 0).any() == retained
    assert (module.train()(x) == 0).any()
