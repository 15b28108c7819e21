import pytest
import torch

from orchestra_flwr.methods import Received
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner, train_round
from orchestra_flwr.training.cuda_graph import CapturedStep

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def deterministic():
    """Otherwise two plain rounds differ as well, by as much as a few steps make of rounding."""
    before = torch.backends.cudnn.deterministic
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = before


def trace(captured: bool) -> tuple[list[float], torch.Tensor]:
    """Twenty steps of a step that draws and accumulates in place, with batches of two sizes."""
    device = torch.device("cuda")
    draw = torch.Generator(device).manual_seed(0)
    data = torch.arange(64.0, device=device)
    total = torch.zeros((), device=device)
    seen = []

    def step(rows: torch.Tensor) -> None:
        total.add_((data[rows] * torch.rand(len(rows), generator=draw, device=device)).sum())

    take = CapturedStep(step, [draw]) if captured else step
    for number in range(20):
        rows = torch.arange(number, number + 7 + number % 2, device=device)
        take(rows)
        seen.append(float(total))
    return seen, draw.get_state()


def test_replays_are_the_step_on_other_rows_with_other_draws():
    plain, captured = trace(False), trace(True)
    assert captured[0] == pytest.approx(plain[0])
    assert torch.equal(captured[1], plain[1])


@pytest.mark.parametrize("method", ["orchestra", "specloss", "mocov2", "swav", "dino"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_captured_round_is_a_plain_one(tiny, method, optimizer, precision):
    """The whole step: augmentation, passes, losses, optimizer and moving average."""
    images = torch.randint(0, 256, (90, 1, 8, 8), dtype=torch.uint8, device="cuda")
    results = []
    for captured in ("false", "true"):
        config = tiny(
            "training.local_epochs=3", f"training.cuda_graphs={captured}", f"method={method}",
            f"optimizer={optimizer}", f"training.precision={precision}",
        )  # fmt: skip
        learner = build_learner(config, 1).cuda()
        if method == "orchestra":
            learner.method.global_centroids.copy_(torch.eye(4, 16))
        results.append(train_round(learner, images, config, ClientSeed(0, 1, "0")))
    assert results[1].steps == results[0].steps == 18
    rel = 1e-3 if precision == "float32" else 2e-2
    assert results[1].losses == pytest.approx(results[0].losses, rel=rel)


@pytest.mark.parametrize("method", ["simclr", "spectral", "simsiam", "semifed", "cbafed"])
def test_a_captured_round_with_some_labels_is_a_plain_one(tiny, method):
    """Whatever labels are in a batch: some have none, or two of a class."""
    images = torch.randint(0, 256, (90, 1, 8, 8), dtype=torch.uint8, device="cuda")
    labels = torch.full((90,), -1, device="cuda")
    labels[::9] = torch.arange(10, device="cuda") % 4
    results = []
    for captured in ("false", "true"):
        config = tiny(
            "training.local_epochs=3", f"training.cuda_graphs={captured}", f"method={method}",
            "labels.fraction=0.1", "terms.verification.weight=1",
        )  # fmt: skip
        learner = build_learner(config, 1).cuda()
        received = Received("0", 1, 1, images, None, 4)
        seed = ClientSeed(0, 1, "0")
        results.append(train_round(learner, images, config, seed, labels=labels, received=received))
    assert results[1].losses == pytest.approx(results[0].losses, rel=1e-3, abs=1e-5)


def test_a_loss_that_draws_is_captured_too(tiny, monkeypatch):
    """Both streams go on from replay to replay: the losses are those of plain steps."""
    images = torch.randint(0, 256, (90, 1, 8, 8), dtype=torch.uint8, device="cuda")
    results = []
    for captured in ("false", "true"):
        config = tiny("method=simclr", "training.local_epochs=3",
                      f"training.cuda_graphs={captured}")  # fmt: skip
        learner = build_learner(config, 1).cuda()
        loss = type(learner.method).loss

        def drawing(self, batch, loss=loss):
            step = loss(self, batch)
            noise = torch.rand((), generator=batch.generator, device=batch.images.device)
            return type(step)({**step.losses, "noise": noise}, step.features)

        with monkeypatch.context() as patch:
            patch.setattr(type(learner.method), "loss", drawing)
            results.append(train_round(learner, images, config, ClientSeed(0, 1, "0")).losses)
    assert results[1] == pytest.approx(results[0], rel=1e-3)
