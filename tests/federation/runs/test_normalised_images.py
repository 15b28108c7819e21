"""Whatever reads images normalises them as `data.normalise` says."""

import pytest
import torch

import orchestra_flwr
from orchestra_flwr.models.backbones.convnet import ConvNet
from orchestra_flwr.models.normalisation import STATISTICS

BLACK = """
    import torch
    from orchestra_flwr.data import Dataset, ImageSet, Source

    class Black(Source):
        "Black but for one gray pixel, which tells images apart: no augmentation makes it bright."
        channels = 3
        classes = 2

        def load(self):
            images = torch.zeros(24, 3, 8, 8, dtype=torch.uint8)
            images[torch.arange(24), :, 3, 3] = torch.arange(24, dtype=torch.uint8)[:, None] // 8
            labels = torch.arange(24) % 2
            return Dataset("black", *2 * [ImageSet(images, labels, ("a", "b"))])
"""


@pytest.mark.parametrize("chosen", [
    ("method=orchestra",),
    ("method=orchestra", "clustering=private", "privacy.epsilon=8", "privacy.k_min=2"),
    ("method=simclr", "merging=fedbn", "evaluation.unsupervised=true"),
    ("method=supervised", "federation.weighting=uniform", "privacy.clip=1",
     "evaluation.unsupervised=true"),
])  # fmt: skip
def test_every_network_sees_normalised_images(
    tiny, tmp_path, user_package, federate, monkeypatch, chosen
):
    user_package({"sources/black.py": BLACK})
    seen, forward = [], ConvNet.forward

    def watching(self, x):
        seen.append(x.detach().amin((0, 2, 3)))
        assert x.amax() < seen[-1].amax() + 0.5  # one pixel, dark as well
        return forward(self, x)

    monkeypatch.setattr(ConvNet, "forward", watching)
    config = tiny("plugins=[my_package]", "data=black", "data.image_size=8", *chosen,
                  "data.normalise=cifar", "partition=iid", "federation.clients=2",
                  "federation.rounds=1", f"run_dir={tmp_path / 'run'}")  # fmt: skip
    run = federate(config)
    encoder = orchestra_flwr.load_encoder(run.folder.path)
    encoder(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    mean, deviation = map(torch.tensor, STATISTICS["cifar"])
    assert len(seen) > 10
    for lowest in seen:
        torch.testing.assert_close(lowest, -mean / deviation)
