import pytest
import torch

from orchestra_flwr.graph import CapturedStep
from orchestra_flwr.methods import build_method
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import train_round

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def trace(captured: bool) -> tuple[list[float], torch.Tensor]:
    """Ten steps of a step that draws, accumulates in place and meets a smaller batch."""
    device = torch.device("cuda")
    draw = torch.Generator(device).manual_seed(0)
    data = torch.arange(64.0, device=device)
    total = torch.zeros((), device=device)
    seen = []

    def step(rows: torch.Tensor) -> None:
        total.add_((data[rows] * torch.rand(len(rows), generator=draw, device=device)).sum())

    take = CapturedStep(step, 8, device, [draw]) if captured else step
    for number in range(10):
        rows = torch.arange(number, number + (3 if number == 6 else 8), device=device)
        take(rows)
        seen.append(float(total))
    return seen, draw.get_state()


def test_replays_are_the_step_on_other_rows_with_other_draws():
    plain, captured = trace(False), trace(True)
    assert captured[0] == pytest.approx(plain[0])
    assert torch.equal(captured[1], plain[1])


def test_a_captured_round_is_a_plain_one(tiny):
    """The whole step: augmentation, passes, losses, optimizer and moving average."""
    images = torch.randint(0, 256, (90, 1, 8, 8), dtype=torch.uint8, device="cuda")
    results = []
    for captured in ("false", "true"):
        config = tiny("training.local_epochs=3", f"training.cuda_graphs={captured}")
        method = build_method(config, 1).cuda()
        method.global_centroids.copy_(torch.eye(4, 16))
        seed, augmentation = ClientSeed(0, 1, "0"), config.data.augmentation
        results.append(train_round(method, images, config.training, augmentation, seed))
    assert results[1].steps == results[0].steps == 18
    assert results[1].losses == pytest.approx(results[0].losses, rel=1e-3)
