"""The decision, and the round that is measured; the measuring itself needs a GPU."""

import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.federation.engines.gpu_memory import measured_share, share_of, train_largest
from orchestra_flwr.training import views_ahead

GB = 10**9


@pytest.mark.parametrize(
    ("needed", "share"),
    [(GB, 0.03), (4 * GB, 0.12), (20 * GB, 0.58), (36 * GB, 1.0), (40 * GB, 1.0)],
)
def test_a_share_holds_the_client_and_a_reserve(needed, share):
    assert share_of(needed, 40 * GB) == pytest.approx(share)


@pytest.mark.parametrize("needed", [GB // 3, GB, 3 * GB, 7 * GB])
def test_clients_of_that_share_fit_together(needed):
    assert int(1 / share_of(needed, 40 * GB)) * needed <= 40 * GB


def test_a_client_that_does_not_fit_alone_is_refused_at_once():
    with pytest.raises(ConfigError, match=r"needs 41.0 GB, the GPU has 40.0 GB"):
        share_of(41 * GB, 40 * GB)


@pytest.mark.parametrize(
    ("limit", "drop_last", "rounds"),
    [(23, True, {16, 23}), (23, False, {23}), (100, True, {16, 50}), (100, False, {17, 50})],
)
def test_what_is_measured_has_the_largest_batch_and_the_most_views(
    tiny, monkeypatch, limit, drop_last, rounds
):
    """Batches of nearly equal size may be larger than training.batch_size: 23 images are one."""
    monkeypatch.setattr(views_ahead, "MAX_BYTES", 4 * 8 * 8 * 50)  # of 50 images with one view
    config = tiny(f"data.train_limit={limit}", "federation.clients=1", "partition=iid")
    training = config.training.model_copy(update={"drop_last": drop_last})
    assert train_largest(config.model_copy(update={"training": training})) == rounds
    with pytest.raises(ValueError):
        train_largest(tiny("method.temperature=-1"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.slow
def test_without_a_gpu_it_says_what_to_give(tiny):
    with pytest.raises(ConfigError, match=r"engine.gpus_per_client: cannot be measured here"):
        measured_share(tiny().to_json())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_larger_batch_needs_more_of_a_gpu(tiny):
    small, large = (
        measured_share(tiny("device=cuda", "model=resnet18", "model.width=64", "data.image_size=32",
                            "data.train_limit=1024", "federation.clients=1", "partition=iid",
                            f"training.batch_size={batch}").to_json())
        for batch in (16, 1024)  # about 1 and 10 GB
    )  # fmt: skip
    assert 0 < small < large <= 1
