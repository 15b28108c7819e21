import math

import pytest
import torch

from orchestra_flwr.evaluation.features import effective_rank, feature_std


def test_feature_std_is_one_when_spread_out_and_zero_when_collapsed():
    spread = torch.randn(4000, 64, generator=torch.Generator().manual_seed(0))
    assert feature_std(spread) == pytest.approx(1, abs=0.01)
    assert feature_std(spread * 7) == pytest.approx(feature_std(spread))
    assert feature_std(torch.ones(10, 64)) == pytest.approx(0, abs=1e-12)
    # One direction, two signs: every dimension deviates by 1 / sqrt(dim).
    line = torch.ones(10, 64) * torch.tensor([1.0, -1.0]).repeat(5)[:, None]
    assert feature_std(line) == pytest.approx(1)
    two_dims = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert feature_std(two_dims) == pytest.approx(0.5 * 2**0.5)


def test_effective_rank_by_hand():
    """Singular values 1, 1, 1 fill three dimensions; 3 and 1 as many as the entropy of 3/4, 1/4."""
    assert effective_rank(torch.eye(5)[:, :3]) == pytest.approx(3)
    assert effective_rank(torch.diag(torch.tensor([3.0, 1.0]))) == pytest.approx(
        4 / 3**0.75, rel=1e-6
    )
    assert effective_rank(torch.ones(7, 4)) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("shape", [(5, 40), (40, 5), (9, 9)])
def test_effective_rank_is_that_of_the_singular_values(generator, shape):
    """Also where images are fewer than dimensions, whose other values are zero and not noise."""
    features = torch.randn(shape, generator=generator)
    singular = torch.linalg.svdvals(features.double())
    shares = singular / singular.sum()
    entropy = float(-(shares * shares.log()).sum())
    assert effective_rank(features) == pytest.approx(math.exp(entropy), rel=1e-12)


def test_effective_rank_ignores_scale_rotation_and_order(generator):
    features = torch.randn(50, 8, generator=generator)
    turn = torch.linalg.qr(torch.randn(8, 8, generator=generator))[0]
    rank = effective_rank(features)
    assert 1 < rank < 8
    assert effective_rank(17 * features @ turn) == pytest.approx(rank, rel=1e-4)
    assert effective_rank(features.flip(0)) == pytest.approx(rank)
