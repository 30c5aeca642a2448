"""The projection onto the simplex against the best of all points that could be it, found by brute force."""

import pytest
import torch

from user_dir.weighted.simplex import project, project_

from equations import nearest_on_simplex


def points(size, dtype=torch.double):
    """Far outside, near and inside; ties; negative; corners: [57, size]."""
    generator = torch.Generator().manual_seed(1)
    scales = torch.logspace(-2, 2, 50, dtype=torch.double).unsqueeze(1)
    random = torch.randn(50, size, generator=generator, dtype=torch.double) * scales
    inside = torch.rand(3, size, generator=generator, dtype=torch.double).softmax(-1)
    special = torch.stack([torch.full((size,), value, dtype=torch.double) for value in (0.0, -3.0, 7.0)])
    return torch.cat([random, inside, special, torch.eye(size, dtype=torch.double)[:1]]).to(dtype)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("dtype", [torch.double, torch.float])
def test_equals_brute_force(size, dtype):
    given = points(size, dtype)[:: 4 if size == 8 else 1]
    expected = torch.stack([nearest_on_simplex(point) for point in given.double()])
    tolerance = 1e-12 if dtype == torch.double else 2e-5  # the inputs are as large as 300
    torch.testing.assert_close(project(given).double(), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", [torch.double, torch.float])
def test_lies_on_the_simplex_and_stays(dtype):
    given = torch.cat([points(8, dtype), points(8, dtype) * 1e4 + 1e6])
    once = project(given)
    tolerance = 10 * torch.finfo(dtype).eps
    assert once.min() >= 0
    torch.testing.assert_close(once.sum(-1), torch.ones(len(given), dtype=dtype), atol=tolerance, rtol=0)
    torch.testing.assert_close(project(once), once, atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", [torch.double, torch.float])
def test_in_place_for_vectors_of_several_sizes(dtype):
    vectors = [torch.nn.Parameter(torch.randn(size, dtype=dtype)) for size in (4, 8, 4, 8, 1)]
    expected = [project(vector.detach()) for vector in vectors]
    addresses = [vector.data_ptr() for vector in vectors]
    project_(vectors)
    assert [vector.data_ptr() for vector in vectors] == addresses
    for vector, right in zip(vectors, expected):
        torch.testing.assert_close(vector.detach(), right, atol=0, rtol=0)
