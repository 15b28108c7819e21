import torch

from orchestra_flwr.clustering.memory import FeatureMemory

IMAGES = torch.arange(20, dtype=torch.uint8).view(20, 1, 1, 1)  # all different


def push(memory, *images):
    memory.push(torch.tensor(images), torch.tensor([[float(i), next(count)] for i in images]))


count = iter(range(10**6))


def test_first_in_first_out():
    memory = FeatureMemory(4, 2)
    push(memory, 0, 1, 2)
    push(memory, 3, 4, 5)
    assert memory.images.tolist() == [2, 3, 4, 5]


def test_an_image_is_one_row_its_newest():
    memory = FeatureMemory(6, 2)
    push(memory, 0, 1, 2)
    push(memory, 2, 0, 1)
    latest = memory.latest(IMAGES)
    assert latest[:, 0].tolist() == [1, 0, 2]
    assert torch.equal(latest, memory.features[3:].flip(0))


def test_one_image_seen_twice_in_a_batch_is_one_row():
    memory = FeatureMemory(8, 2)
    push(memory, 0, 0)
    assert len(memory.latest(IMAGES)) == 1


def test_copies_of_an_image_are_one_row_its_newest():
    memory = FeatureMemory(6, 2)
    push(memory, 0, 1, 2)
    push(memory, 3, 4)
    images = IMAGES.clone()
    images[[0, 3]] = 9
    latest = memory.latest(images)
    assert latest[:, 0].tolist() == [4, 3, 2, 1]


def test_epochs_longer_than_the_memory_leave_only_different_images():
    memory = FeatureMemory(8, 2)
    for epoch in range(3):
        order = torch.randperm(20, generator=torch.Generator().manual_seed(epoch))
        for start in range(0, 20, 3):
            push(memory, *order[start : start + 3].tolist())
    assert len(memory.latest(IMAGES)) == 8
    assert set(memory.latest(IMAGES)[:, 0].int().tolist()) == set(order[-8:].tolist())


def test_clear():
    memory = FeatureMemory(4, 2)
    push(memory, 1)
    memory.clear()
    assert len(memory.latest(IMAGES)) == 0


def test_rows_stay_where_they_are_in_memory():
    """A captured step of training writes to the same addresses whenever it is replayed."""
    memory = FeatureMemory(4, 2)
    before = memory.features.data_ptr(), memory.images.data_ptr()
    push(memory, 0, 1, 2)
    push(memory, 3, 4, 5, 6, 7)
    memory.clear()
    assert before == (memory.features.data_ptr(), memory.images.data_ptr())
    assert memory.features.shape == (4, 2)


def test_pushing_more_than_it_holds_keeps_the_newest():
    memory = FeatureMemory(3, 2)
    push(memory, 0, 1, 2, 3, 4)
    assert memory.latest(IMAGES)[:, 0].tolist() == [4, 3, 2]
