import pytest
import torch

from orchestra_flwr.data import epoch_batches, local_epochs


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("count", [2, 3, 15, 16, 17, 18, 31, 32, 33, 100])
@pytest.mark.parametrize("batch_size", [2, 3, 16, 256])
def test_every_image_comes_once_in_batches_of_nearly_equal_size(count: int, batch_size: int):
    batches = epoch_batches(count, batch_size, _generator())

    assert torch.cat(batches).sort().values.tolist() == list(range(count))
    sizes = [len(batch) for batch in batches]
    assert min(sizes) >= 2
    assert max(sizes) - min(sizes) <= 1
    if count >= batch_size:
        assert 2 * batch_size / 3 <= min(sizes) or min(sizes) == count // len(sizes) == 2
        assert max(sizes) < 1.5 * batch_size + 1


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(130, [33, 33, 32, 32]), (34, [34]), (47, [47]), (48, [24, 24]), (64, [32, 32]), (5, [5])],
)
def test_what_is_left_over_is_dealt_out_to_all_batches(count: int, sizes: list[int]):
    """130 images in batches of 32 leave 2, on which BatchNorm cannot train."""
    assert [len(batch) for batch in epoch_batches(count, 32, _generator())] == sizes


def test_a_lone_image_fills_its_batch_twice():
    assert [batch.tolist() for batch in epoch_batches(1, 16, _generator())] == [[0, 0]]


def test_the_generator_decides_the_order():
    first, again, other = (torch.cat(epoch_batches(50, 8, _generator(s))) for s in (1, 1, 2))

    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, torch.arange(50))


def test_epochs_of_one_generator_differ():
    generator = _generator()

    assert not torch.equal(
        torch.cat(epoch_batches(50, 8, generator)), torch.cat(epoch_batches(50, 8, generator))
    )


@pytest.mark.parametrize(("count", "batch_size"), [(0, 16), (5, 1)])
def test_impossible_sizes_are_refused(count: int, batch_size: int):
    with pytest.raises(ValueError, match="count="):
        epoch_batches(count, batch_size, _generator())


@pytest.mark.parametrize(
    ("count", "sizes"), [(1, [2]), (3, [3]), (4, [4]), (5, [4]), (7, [4]), (8, [4, 4]), (9, [4, 4])]
)
def test_a_last_batch_that_is_not_full_can_be_left_out(count, sizes, generator):
    """But a client with fewer images than a batch trains on what it has."""
    batches = epoch_batches(count, 4, generator, drop_last=True)
    assert [len(batch) for batch in batches] == sizes
    if count > 1:
        assert len(torch.cat(batches).unique()) == sum(sizes)


@pytest.mark.parametrize(
    ("count", "fewest", "epochs"),
    [(1, 7, 7), (16, 7, 7), (32, 7, 4), (64, 7, 3), (200, 7, 3), (200, 40, 4), (32, 1, 3)],
)
def test_few_images_are_gone_through_until_the_steps_suffice(tiny, count, fewest, epochs):
    """In batches of 16, and never fewer than 3 times."""
    training = tiny("training.local_epochs=3", f"training.min_steps={fewest}").training
    assert local_epochs(training, count) == epochs


def test_steps_without_the_last_images_are_counted_as_such(tiny):
    training = tiny("training.drop_last=true", "training.min_steps=4").training
    assert local_epochs(training, 31) == 4  # one step of 16, where two would take 31
