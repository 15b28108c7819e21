import copy
import os
import subprocess
import sys

import pytest
import torch
from sklearn.datasets import load_digits

from orchestra_flwr.config import ConfigError
from orchestra_flwr.methods import Role, build_method
from orchestra_flwr.methods.memory import FeatureMemory
from orchestra_flwr.optimizer import SGD
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import (
    TrainingError,
    observe_round,
    resolve_device,
    torch_threads,
    train_round,
)


def images(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 1, 8, 8), dtype=torch.uint8, generator=generator)


SEED = ClientSeed(0, 1, "0")


def train(config, given=40, seed=SEED, work=train_round):
    method = build_method(config, 1)
    method.global_centroids.copy_(torch.eye(4, 16))
    given = images(given) if isinstance(given, int) else given
    result = work(method, given, config.training, config.data.augmentation, seed)
    return method, result


def shared(method):
    return method.state(Role.SHARED)


def test_steps_losses_and_centroids(tiny):
    _, result = train(tiny("training.local_epochs=3"))
    assert result.steps == 3 * 3  # 40 images in batches of 16: the last of 8 is kept
    assert set(result.losses) == {"cluster", "rotation"}
    assert all(0 < loss < 10 for loss in result.losses.values())
    assert result.contribution.arrays["local_centroids"].shape == (2, 16)
    assert result.contribution.smallest_cluster == 16  # of the memory's 32


def test_a_last_batch_that_is_not_full_can_be_left_out(tiny):
    assert train(tiny("training.drop_last=true"), 40)[1].steps == 2
    assert train(tiny("training.drop_last=true"), 10)[1].steps == 1  # rather than training nothing


def test_the_loss_falls_on_a_client_that_trains_long(tiny):
    digits = torch.from_numpy(load_digits().images[:200, None] * 15).to(torch.uint8)
    config, longer = (tiny("training.lr=0.03", f"training.local_epochs={n}") for n in (1, 15))
    first, last = (train(c, digits)[1].losses for c in (config, longer))
    assert last["rotation"] < first["rotation"] - 0.2


@pytest.mark.parametrize("n", [1, 2, 7, 16, 17, 33])
def test_any_number_of_images(tiny, n):
    method, result = train(tiny("training.local_epochs=2"), n)
    assert all(torch.isfinite(t).all() for t in shared(method).values())
    assert len(result.contribution.arrays["local_centroids"]) == min(2, n // 2)  # privacy.k_min


@pytest.mark.parametrize("work", [train_round, observe_round])
@pytest.mark.parametrize(
    ("n", "k_min", "rows", "smallest"), [(5, 8, 0, 0), (5, 5, 1, 5), (5, 3, 1, 5), (5, 2, 2, 2)]
)
def test_epochs_do_not_make_images_out_of_views(tiny, n, k_min, rows, smallest, work):
    """Six epochs on five images fill the memory with thirty rows of five images."""
    config = tiny("training.local_epochs=6", f"privacy.k_min={k_min}")
    method, result = train(config, n, work=work)
    assert len(method.memory) == (30 if work is train_round else 5)
    assert result.contribution.arrays["local_centroids"].shape == (rows, 16)
    assert result.contribution.smallest_cluster == smallest


def test_same_seed_same_bits_whatever_the_global_generator(tiny):
    torch.manual_seed(1)
    first, _ = train(tiny())
    torch.manual_seed(2)
    again, _ = train(tiny())
    assert all(
        torch.equal(a, b)
        for a, b in zip(shared(first).values(), shared(again).values(), strict=True)
    )


@pytest.mark.parametrize("seed", [ClientSeed(1, 1, 0), ClientSeed(0, 2, 0), ClientSeed(0, 1, 1)])
def test_other_seed_round_or_client_other_weights(tiny, seed):
    first, other = train(tiny())[0], train(tiny(), seed=seed)[0]
    assert not torch.equal(first.rotation_head.weight, other.rotation_head.weight)


def test_the_target_follows_before_the_optimizer_steps(tiny, monkeypatch):
    """After two steps the target is m T0 + (1 - m) O1, O1 being the online weights after one."""
    config = tiny("method.ema=0.9", "training.lr=0.1")
    method = build_method(config, 1)
    start = copy.deepcopy(method.backbone)
    online = []
    step = SGD.step

    def recording(self):
        step(self)
        online.append(copy.deepcopy(method.backbone))

    monkeypatch.setattr(SGD, "step", recording)
    train_round(method, images(32), config.training, config.data.augmentation, SEED)
    assert len(online) == 2
    for t, t0, o1 in zip(
        method.target_backbone.parameters(), start.parameters(), online[0].parameters(), strict=True
    ):
        torch.testing.assert_close(t, 0.9 * t0 + 0.1 * o1)


def test_no_label_reaches_a_method_that_needs_none(tiny, monkeypatch):
    config = tiny()
    method = build_method(config, 1)
    seen, loss = [], type(method).loss
    monkeypatch.setattr(
        type(method), "loss", lambda self, batch: (seen.append(batch.labels), loss(self, batch))[1]
    )
    train_round(
        method, images(40), config.training, config.data.augmentation, SEED,
        labels=torch.zeros(40, dtype=torch.long),
    )  # fmt: skip
    assert seen == [None] * 3


def test_the_first_round_changes_nothing_shared(tiny):
    before = copy.deepcopy(shared(build_method(tiny(), 1)))
    method, result = train(tiny(), work=observe_round)
    assert all(torch.equal(before[name], t) for name, t in shared(method).items())
    assert (result.losses, result.steps) == ({}, 0)
    assert result.contribution.arrays["local_centroids"].shape == (2, 16)


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("work", [train_round, observe_round])
def test_a_round_in_bfloat16_ends_near_the_one_in_float32(tiny, norm, work):
    """Two steps on digits; near: the change of all weights together by less than a quarter of it,
    losses and centroids within a hundredth, statistics within two or .005."""
    digits = torch.from_numpy(load_digits().images[:128, None] * 15).to(torch.uint8)
    chosen = ("training.batch_size=64", f"model.norm={norm}")
    start = shared(build_method(tiny(*chosen), 1))
    exact, told = train(tiny(*chosen), digits, work=work)
    method, result = train(tiny(*chosen, "training.precision=bfloat16"), digits, work=work)
    for name, tensor in shared(method).items():
        assert tensor.dtype == torch.float32 and torch.isfinite(tensor).all()
        if "running" in name:
            torch.testing.assert_close(tensor, shared(exact)[name], rtol=0.02, atol=5e-3)
    changes = [
        torch.cat([(t - start[n]).flatten() for n, t in shared(m).items() if "running" not in n])
        for m in (exact, method)
    ]
    assert (changes[1] - changes[0]).norm() <= 0.25 * changes[0].norm()
    assert result.losses == pytest.approx(told.losses, rel=0.01)
    ours, theirs = (r.contribution.arrays["local_centroids"] for r in (result, told))
    assert ours.dtype == torch.float32
    assert (ours * theirs).sum(1).min() > 0.99
    assert method.state(Role.PRIVATE)["memory.features"].dtype == torch.float32


@pytest.mark.parametrize("work", [train_round, observe_round])
def test_bfloat16_reaches_every_encoder_and_no_loss(tiny, work, monkeypatch):
    config = tiny("training.precision=bfloat16")
    method = build_method(config, 1)
    seen = {}
    for name, module in method.named_modules():
        if isinstance(module, torch.nn.Conv2d):
            hook = lambda *call, name=name: seen.update({name: call[-1].dtype})  # noqa: E731
            module.register_forward_hook(hook)
    features = []
    push = FeatureMemory.push
    monkeypatch.setattr(
        FeatureMemory, "push", lambda *call: (features.append(call[-1].dtype), push(*call))
    )
    work(method, images(16), config.training, config.data.augmentation, SEED)
    encoders = {"target_backbone"} | ({"backbone"} if work is train_round else set())
    assert {name.partition(".")[0] for name in seen} == encoders
    assert set(seen.values()) == {torch.bfloat16} and set(features) == {torch.float32}


def test_the_same_bits_again_in_bfloat16(tiny):
    first, again = (train(tiny("training.precision=bfloat16"))[0] for _ in range(2))
    assert all(torch.equal(t, shared(again)[name]) for name, t in shared(first).items())


def test_a_loss_that_explodes_is_told(tiny):
    with pytest.raises(TrainingError, match="a lower training.lr may help"):
        train(tiny("training.lr=1e30", "training.local_epochs=5"))


def test_threads_are_given_back():
    before = torch.get_num_threads()
    with torch_threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_a_gpu_that_is_not_there_is_told():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert resolve_device("auto").type == "cpu"
    with pytest.raises(ConfigError, match="device=cuda:0: 0 GPUs are visible"):
        resolve_device("cuda:0")


def test_waiting_threads_sleep():
    """Spinning ones made everything several times as long on a busy machine."""
    done = subprocess.run(
        [sys.executable, "-c", "import orchestra_flwr.training"],
        env={**os.environ, "OMP_DISPLAY_ENV": "true"},
        capture_output=True,
        text=True,
        check=True,
    )
    if "OMP_WAIT_POLICY" not in done.stderr:
        pytest.skip("this torch has no OpenMP that tells its settings")
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in done.stderr
