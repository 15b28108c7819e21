"""Groups from a saved encoder."""

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from orchestra_flwr.config import ConfigError, ModelConfig
from orchestra_flwr.config.choices import PartitionConfig
from orchestra_flwr.data import ImageSet, partition_by_name
from orchestra_flwr.models import Encoder, EncoderSpec, load_encoder, save_encoder

KIND = torch.arange(120) % 3


@pytest.fixture
def images(generator):
    """Three kinds of pictures, which any encoder tells apart; the labels say nothing of them."""
    kinds = torch.randint(0, 256, (3, 1, 8, 8), generator=generator)
    noise = torch.randint(-9, 10, (120, 1, 8, 8), generator=generator)
    labels = torch.randint(0, 2, (120,), generator=generator)
    pixels = (kinds[KIND] + noise).clamp(0, 255).to(torch.uint8)
    return ImageSet(pixels, labels, ("a", "b"))


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    torch.manual_seed(0)
    spec = EncoderSpec(model=ModelConfig(name="convnet", width=8), channels=1, image_size=8)
    save_encoder(tmp_path / "encoder.safetensors", Encoder(spec))

    def config_(**options):
        values = {"name": "features", "encoder": str(tmp_path), "groups": 3, "whiten": False}
        return PartitionConfig.model_validate(values | options)

    return config_


def test_what_looks_alike_is_a_group(config, images):
    labels, names = config().build().groups(images)
    assert names == ("group 0", "group 1", "group 2")
    pairs = set(zip(labels.tolist(), KIND.tolist(), strict=True))
    assert len(pairs) == 3  # one group for each kind


def test_directions_without_variance_are_not_whitened(config, images):
    """Copies of three images vary in two directions; what rounding adds must not make groups."""
    copies = ImageSet(images.images[:3].repeat(40, 1, 1, 1))
    labels, _ = config(whiten=True).build().groups(copies)
    assert len(set(zip(labels.tolist(), KIND.tolist(), strict=True))) == 3


@pytest.mark.parametrize("broken", [False, True])
def test_features_that_make_no_groups_are_one_line(config, images, tmp_path, broken):
    alike = ImageSet(images.images[:1].repeat(9, 1, 1, 1))
    if broken:
        encoder = load_encoder(tmp_path)
        next(encoder.backbone.parameters()).data.fill_(float("nan"))
        save_encoder(tmp_path / "encoder.safetensors", encoder)
    with pytest.raises(ConfigError) as error:
        config(whiten=True).build().groups(images if broken else alike)
    assert str(error.value) == (
        f"partition.encoder={tmp_path}: makes no groups: the features of these images are not "
        "finite or all alike"
    )


@pytest.mark.parametrize("deal", ["dirichlet", "prior_dirichlet", "skew"])
def test_groups_are_dealt_as_classes_are(config, images, deal):
    options = {"beta": 0} if deal == "skew" else {"alpha": 1e-6}
    parts = partition_by_name(config(deal=deal, **options), images, 3, 0)
    assert sorted(np.concatenate(list(parts.values()))) == list(range(120))
    # One client for a group; with dirichlet two groups may have one client, and another one image.
    assert sum(len(KIND[part].unique()) for part in parts.values()) <= 5
    even = config(deal=deal, **({"beta": 1} if deal == "skew" else {"alpha": 1e6}))
    parts = partition_by_name(even, images, 3, 0)
    assert all(len(KIND[part].unique()) == 3 for part in parts.values())


def test_groups_are_computed_once(config, images, monkeypatch, tmp_path):
    first = config().build().groups(images)[0]
    monkeypatch.setattr(KMeans, "fit_predict", lambda *_: pytest.fail("computed again"))
    assert torch.equal(config().build().groups(images)[0], first)
    (file,) = (tmp_path / "cache" / "orchestra_flwr").iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert torch.equal(config().build().groups(images)[0], first)  # a damaged file is made anew


def test_other_images_encoders_and_numbers_have_groups_of_their_own(config, images, tmp_path):
    config().build().groups(images)
    config(groups=2).build().groups(images)
    config(whiten=True).build().groups(images)
    config().build().groups(images.select(torch.arange(60)))
    assert len(list((tmp_path / "cache" / "orchestra_flwr").iterdir())) == 4


def test_without_an_encoder_a_run_is_refused(tiny):
    with pytest.raises(ConfigError) as error:
        tiny("partition=features")
    assert str(error.value) == (
        "partition.encoder: must be given, a run folder or an encoder.safetensors"
    )


def test_an_encoder_that_is_not_there_or_of_other_images_is_refused(config, images, tmp_path):
    with pytest.raises(ConfigError, match=r"^partition\.encoder=/none: .*no such file"):
        partition_by_name(config(encoder="/none"), images, 3, 0)
    photos = ImageSet(images.images.repeat(1, 3, 1, 1))
    with pytest.raises(ConfigError) as error:
        partition_by_name(config(), photos, 3, 0)
    assert str(error.value) == (
        f"partition.encoder={tmp_path}: expects images (1, 8, 8), these are (3, 8, 8) "
        "(channels, height, width)"
    )


def test_more_groups_than_images_are_refused(config, images):
    with pytest.raises(ConfigError, match=r"^partition\.groups=121: at most one for each of 120"):
        partition_by_name(config(groups=121), images, 3, 0)


def test_a_cache_that_cannot_be_written_is_told(config, images, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="set XDG_CACHE_HOME to a folder that can be written"):
        partition_by_name(config(), images, 3, 0)
