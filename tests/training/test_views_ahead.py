"""Views made for many batches at once: those of the images, in the batches' order, in place."""

import pytest
import torch

from orchestra_flwr.data import augment
from orchestra_flwr.data.batches import epoch_batches
from orchestra_flwr.models import normalise
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner, views_ahead
from orchestra_flwr.training.step import BatchMaker
from orchestra_flwr.training.views_ahead import ViewsAhead

SEED = ClientSeed(0, 1, "0")


@pytest.fixture
def images():
    draw = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (50, 1, 8, 8), dtype=torch.uint8, generator=draw)


def batches(seed: int) -> list[torch.Tensor]:
    """Three of 17, 17 and 16 images."""
    return epoch_batches(50, 16, torch.Generator().manual_seed(seed))


def maker(kind, config, images, labels=None):
    return kind(build_learner(config, 1).method, images, labels, config, SEED)


@pytest.mark.parametrize("method", ["orchestra", "simclr"])
def test_a_batch_has_the_views_of_its_images(tiny, images, method):
    config = tiny(f"method={method}")
    ahead = maker(ViewsAhead, config, images)
    recipes, generator = ahead._recipes, SEED.generator("augment")
    for epoch in range(2):
        rows = batches(epoch)
        expected = augment(images[torch.cat(rows)], recipes, generator)
        first = 0
        for chosen, places in zip(rows, ahead.in_steps(rows), strict=True):
            batch = ahead(places)
            assert torch.equal(batch.images, chosen)
            part = slice(first, first := first + len(chosen))
            for made, views in zip(batch.views, expected.images, strict=True):
                assert torch.equal(made, normalise(views[part], config.data.normalise))
                assert made.is_contiguous(memory_format=torch.channels_last)
            for made, turns in zip(batch.rotations, expected.rotations, strict=True):
                assert (made is None) == (turns is None)
                assert made is None or torch.equal(made, turns[part])


def test_one_batch_at_a_time_is_as_without(tiny, images, monkeypatch):
    monkeypatch.setattr(views_ahead, "MAX_BYTES", 1)
    config = tiny()
    plain, ahead = maker(BatchMaker, config, images), maker(ViewsAhead, config, images)
    for rows, places in zip(batches(0), ahead.in_steps(batches(0)), strict=True):
        one, other = plain(rows), ahead(places)
        assert all(map(torch.equal, one.views, other.views))


def test_views_stay_in_the_same_memory(tiny, images):
    """A captured step reads them there."""
    ahead = maker(ViewsAhead, tiny(), images)
    where = set()
    for epoch in range(3):
        for _ in ahead.in_steps(batches(epoch)):
            where.add(tuple(tensor.data_ptr() for tensor in ahead._kept))
    assert len(where) == 1


def test_so_many_as_memory_allows_are_made_at_once(tiny, images, monkeypatch):
    config = tiny()
    ahead = maker(ViewsAhead, config, images)
    monkeypatch.setattr(views_ahead, "MAX_BYTES", 4 * 3 * 8 * 8 * 40)
    made, views = [], BatchMaker._views

    def counted(self, rows):
        made.append(len(rows))
        return views(self, rows)

    monkeypatch.setattr(BatchMaker, "_views", counted)
    assert [len(places) for places in ahead.in_steps(batches(0))] == [17, 17, 16]
    assert made == [34, 16]


def test_labels_go_with_their_images(tiny, images):
    config = tiny("method=supervised")
    labels = torch.arange(50) % 10
    ahead = maker(ViewsAhead, config, images, labels)
    for rows, places in zip(batches(0), ahead.in_steps(batches(0)), strict=True):
        assert torch.equal(ahead(places).labels, labels[rows])
