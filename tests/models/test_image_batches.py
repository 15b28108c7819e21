import pytest
import torch

from orchestra_flwr.models import image_batches


@pytest.mark.parametrize(
    ("size", "device", "most"),
    [(64, "cpu", 256), (65, "cpu", 248), (224, "cpu", 20), (2048, "cpu", 1), (224, "cuda", 256)],
)
def test_large_images_pass_a_cpu_in_small_batches(size, device, most):
    images = torch.arange(300.0).view(300, 1, 1, 1).expand(300, 3, size, size)  # no memory
    batches = image_batches(images, 256, torch.device(device))
    assert {len(batch) for batch in batches[:-1]} == {most}
    assert [int(x) for batch in batches for x in batch[:, 0, 0, 0]] == list(range(300))


def test_batches_are_never_larger_than_was_asked_for():
    assert [
        len(batch) for batch in image_batches(torch.zeros(7, 1, 8, 8), 3, torch.device("cpu"))
    ] == [3, 3, 1]
