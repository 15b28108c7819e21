"""Distillation in whole runs: teachers stay on the clients, and no message holds any of them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from orchestra_flwr.config import ConfigError, load_config
from orchestra_flwr.config.reading.compose import without_unread
from orchestra_flwr.federation.messages.fields import ARRAYS
from orchestra_flwr.federation.population import check_population, load_population
from orchestra_flwr.flower.arrays import from_record
from orchestra_flwr.methods import Role
from orchestra_flwr.models import Encoder, EncoderSpec, load_encoder, save_encoder
from orchestra_flwr.reporting import RunFolder
from orchestra_flwr.training import starting_learner

QUICK = ("method=distill", "partition=iid", "evaluation.every=9", "training.lr=0.05")
CLIENTS = ("0", "1", "2", "3")


@pytest.fixture
def teachers(tiny, tmp_path):
    """A folder of teachers, one for each client, of two widths."""
    for number, name in enumerate(CLIENTS):
        config = tiny(f"model.width={8 + 8 * (number % 2)}")
        torch.manual_seed(number)
        folder = tmp_path / "teachers" / name
        folder.mkdir(parents=True)
        save_encoder(folder / "encoder.safetensors", Encoder(EncoderSpec.of(config)))
    return tmp_path / "teachers"


def test_nothing_of_a_teacher_travels(tiny, tmp_path, federate, watched):
    config = tiny(*QUICK, f"run_dir={tmp_path / 'run'}", "federation.rounds=2")
    learner = starting_learner(config, 1)
    size = sum(tensor.numel() for tensor in learner.state(Role.SHARED).values())
    teacher = load_encoder(config.method.settings.teacher).backbone.state_dict()
    weights = [t.numpy().tobytes() for t in teacher.values() if t.unique().numel() > 64]
    seen = []

    def look(client, round_, sent, reply):
        up, down = from_record(reply.content[ARRAYS]), from_record(sent[ARRAYS])
        seen.append((client, round_))
        for arrays in (up, down):
            assert {name: array.size for name, array in arrays.items()} == {"shared": size}
            content = np.ascontiguousarray(arrays["shared"]).tobytes()
            assert not any(weight in content for weight in weights)

    run = federate(config, app=watched(look))
    assert len(weights) > 2 and sorted(seen) == [(c, r) for c in CLIENTS for r in (1, 2)]
    assert set(run.state) == set(learner.state(Role.SHARED))
    losses = [record["loss"]["similarity"] for record in run.records[1:]]
    assert losses[1] < losses[0]
    text = b"".join(file.read_bytes() for file in run.folder.path.rglob("*") if file.is_file())
    assert not any(weight in text for weight in weights)


def test_teachers_differ_and_heads_stay_with_the_clients(tiny, tmp_path, federate, teachers):
    config = tiny(
        *QUICK, f"method.teacher={teachers}/{{client}}", "method.head=local",
        f"run_dir={tmp_path / 'run'}", "federation.rounds=3",
    )  # fmt: skip
    run = federate(config)
    assert run.state and all(name.startswith("backbone.") for name in run.state)
    heads = [
        load_file(next((run.folder.clients / name).rglob("3.safetensors"))) for name in CLIENTS
    ]
    assert all(any("projector" in name for name in head) for head in heads)
    one, other = ({k: v for k, v in h.items() if "projector" in k} for h in heads[:2])
    assert not any(torch.equal(one[name], other[name]) for name in one if "weight" in name)


def test_a_client_without_its_teacher_stops_a_run_before_it_begins(tiny, teachers):
    (teachers / "2" / "encoder.safetensors").unlink()
    config = tiny(*QUICK, f"method.teacher={teachers}/{{client}}")
    with pytest.raises(ConfigError, match=r"^method.teacher=.*/2: .*no such file"):
        check_population(config, load_population(config))


def test_killed_and_resumed_it_ends_in_the_same_bits(tiny, tmp_path, federate, watched, teachers):
    local = (*QUICK, f"method.teacher={teachers}/{{client}}", "method.head=local")
    whole = federate(tiny(*local, f"run_dir={tmp_path / 'whole'}"))
    torn = tiny(*local, f"run_dir={tmp_path / 'torn'}")

    def pull_the_plug(client, round_, sent, reply):
        if (client, round_) == ("2", 2):
            raise KeyboardInterrupt

    folder = RunFolder.create(torn)
    with pytest.raises(KeyboardInterrupt):
        federate(torn, app=watched(pull_the_plug), folder=folder)
    again = federate(torn, folder=RunFolder.resume(folder.path))
    assert all(torch.equal(whole.state[name], again.state[name]) for name in whole.state)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_same_bits_on_ray(tiny_overrides, tmp_path, teachers):
    def run(engine, *options):
        overrides = [
            *tiny_overrides, *QUICK, "method.head=local", f"method.teacher={teachers}/{{client}}",
            f"run_dir={tmp_path / engine}", f"engine={engine}", *options,
        ]  # fmt: skip
        overrides = without_unread(load_config(overrides), overrides)
        command = [sys.executable, str(Path(__file__).parents[3] / "run_sim.py"), *overrides]
        subprocess.run(command, check=True, capture_output=True, timeout=200)
        return load_file(tmp_path / engine / "encoder.safetensors")

    inline, ray = run("inline"), run("ray", "engine.workers=2")
    assert all(torch.equal(inline[name], ray[name]) for name in inline)
