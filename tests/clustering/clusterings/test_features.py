import pytest
import torch
import torch.nn.functional as F

from orchestra_flwr.config import ConfigError
from orchestra_flwr.methods import release_of
from orchestra_flwr.seeding import ClientSeed


def test_features_themselves_are_shared_only_where_that_was_chosen_twice(tiny):
    with pytest.raises(ConfigError, match=r"privacy.k_min=2: must be 1 .* NOT PRIVATE"):
        tiny("clustering=features")
    config = tiny("clustering=features", "privacy.k_min=1", "clustering.memory=8")
    clustering = config.clustering.build(config)
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (10, 1, 8, 8), dtype=torch.uint8, generator=draw)
    features = F.normalize(torch.randn(10, 16, generator=draw), dim=1)
    clustering.observe(torch.arange(10), features)
    contribution = clustering.end_round(images, ClientSeed(0, 1, "0"))
    assert torch.equal(contribution.arrays["local_centroids"], features[2:].flip(0))
    assert contribution.smallest_group == 1
    release = release_of(config)
    assert release.rows == {"local_centroids": (8, 16)}
    assert release.label == "features" and "single images" in release.exposes
