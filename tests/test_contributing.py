"""The plug-ins in the guides run as they are printed."""

import ast
import json
import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from threadpoolctl import threadpool_limits

from orchestra_flwr import load_encoder
from orchestra_flwr.cli import main
from orchestra_flwr.config import load_config, without_unread

ROOT = Path(__file__).parents[1]
GUIDES = ("docs/contributing.md",)
EXAMPLE = re.compile(r"```(?:python|yaml)\n# my_package/(\S+)\n.*?```", re.S)
COMMAND = re.compile(r"orchestra-sim (plugins=\[my_package\] [^`\n#]*\S)")
QUICK = ("federation.rounds=1", "evaluation.every=9")


def examples():
    """For each section with a plug-in: its folder, its files by path, and the printed overrides."""
    sections = {}
    for guide in GUIDES:
        for section in re.split(r"^## ", (ROOT / guide).read_text(), flags=re.M):
            files = {
                match[1]: match[0].split("\n", 1)[1].removesuffix("```")
                for match in EXAMPLE.finditer(section)
            }
            if files:
                (command,) = COMMAND.findall(section)
                sections[next(iter(files))] = files, command.split()
    return sections


EXAMPLES = examples()


class Run:
    """A finished run's folder."""

    def __init__(self, folder, overrides):
        self.folder = folder
        self.config = load_config(overrides)
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        self.rounds = [json.loads(line) for line in lines]
        with safe_open(folder / "checkpoint" / "state.safetensors", framework="pt") as file:
            self.checkpoint = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    @property
    def loss(self):
        return {name: value for name, value in self.rounds[-1]["loss"].items() if name != "total"}


@pytest.fixture
def run(tmp_path, tiny_overrides):
    """Runs the command line of orchestra-sim, tiny."""
    runs = []

    def run_(*overrides):
        folder = tmp_path / f"run-{len(runs)}"
        overrides = [*tiny_overrides, *QUICK, f"run_dir={folder}", *overrides]
        overrides = without_unread(load_config(overrides), overrides)
        with threadpool_limits(1):  # more threads of a linear probe wait for each other
            assert main(overrides) == 0
        runs.append(Run(folder, overrides))
        return runs[-1]

    return run_


@pytest.fixture
def printed(user_package, run):
    """Runs what the guide prints for the plug-in of this path."""

    def printed_(path, *overrides):
        files, command = EXAMPLES[path]
        user_package(files)
        return run(*command, *overrides)

    return printed_


def initial(config):
    """The state of what is trained, as a run begins."""
    from orchestra_flwr.training import build_learner

    return {n: t.clone() for n, t in build_learner(config, config.data.channels).trained().items()}


def test_there_is_an_example_of_every_kind():
    from orchestra_flwr.config import Config

    kinds = {path.split("/")[0] for path in EXAMPLES}
    groups = [field.annotation for field in Config.model_fields.values()]
    rooms = {group.room.name for group in groups if hasattr(group, "room")} | {"terms", "solvers"}
    assert kinds == rooms
    ran = Path(__file__).read_text()
    assert all(f'"{path}"' in ran for path in EXAMPLES)


def test_a_method_is_six_names_on_one_screen():
    files, _ = EXAMPLES["methods/contrast.py"]
    text = files["methods/contrast.py"]
    (made,) = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    names = [node.name for node in made.body if hasattr(node, "name")]
    assert names == ["Settings", "__init__", "role", "recipes", "loss", "backbones"]
    assert [ast.unparse(base) for base in made.bases] == ["Method"]
    assert len(text.splitlines()) <= 45


def test_method(printed):
    run = printed("methods/contrast.py")
    assert set(run.loss) == {"contrast"}
    assert run.config.method.settings.temperature == 0.2
    assert run.config.method.paper["silo"] == {"lr": 0.03}


def test_method_in_mixed_precision_and_with_a_term(printed):
    run = printed("methods/contrast.py", "training.precision=bfloat16", "terms.proximal.weight=0.1")
    assert set(run.loss) == {"contrast", "proximal"}


@pytest.mark.slow
def test_workers_of_ray_find_the_method(printed):
    """The workers are processes of their own."""
    inline = printed("methods/contrast.py")
    ray = printed("methods/contrast.py", "engine=ray", "engine.workers=2")
    assert ray.loss == inline.loss
    assert all(torch.equal(t, inline.checkpoint[n]) for n, t in ray.checkpoint.items())


def test_clustering(printed):
    run = printed("clusterings/random_groups.py")
    assert run.config.clustering.settings.groups == 3
    assert set(run.loss) == {"cluster", "rotation"}
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["released"] == "means" and summary["k_anonymity"] >= 2
    centroids = run.checkpoint["global_centroids"]
    torch.testing.assert_close(centroids.norm(dim=1), torch.ones(len(centroids)))


def test_solver(printed, run):
    k_means, usual = printed("solvers/k_means.py"), run()
    assert k_means.config.clustering.solver.settings.steps == 5
    ours, theirs = (result.checkpoint["global_centroids"] for result in (k_means, usual))
    torch.testing.assert_close(ours.norm(dim=1), torch.ones(len(ours)))
    assert not torch.equal(ours, theirs)


def test_term(printed):
    run = printed("terms/feature_size.py")
    assert set(run.loss) == {"contrastive", "feature_size"} and run.loss["feature_size"] > 0


def test_merging(printed):
    run = printed("merging/halfway.py", "federation.rounds=2")
    assert [record.get("merge") for record in run.rounds[1:]] == [{"share": 0.0}, {"share": 0.25}]
    assert len(list((run.folder / "clients").rglob("2.safetensors"))) == 4


def test_server_optimizer(printed):
    run = printed("server_optimizers/sign_momentum.py")
    momentum = run.checkpoint["server_optimizer/model/momentum"]
    assert momentum.any()
    moved = [(run.checkpoint[n] - t).abs() for n, t in initial(run.config).items()]
    moved = torch.cat([tensor.flatten() for tensor in moved])
    assert torch.allclose(moved[moved > 0], torch.tensor(0.002), rtol=1e-3)


def test_aggregation(printed):
    """One client's model is chosen, and no mean is made."""
    run = printed("aggregations/typical.py")
    assert (run.config.aggregation.name, run.config.attack.name) == ("typical", "scaled")
    assert set(run.loss) == {"contrastive"}
    mean = printed("aggregations/typical.py", "aggregation=mean")
    assert any(not torch.equal(t, mean.checkpoint[n]) for n, t in run.checkpoint.items())


def test_attack(printed):
    """With all clients lazy nothing moves."""
    run = printed("attacks/lazy.py", "attack.clients=4")
    for name, tensor in initial(run.config).items():
        if "running" not in name and "num_batches" not in name:
            torch.testing.assert_close(run.checkpoint[name], tensor)


def test_exchange(printed):
    from orchestra_flwr.federation.messages.schema import Schemas
    from orchestra_flwr.methods import Role
    from orchestra_flwr.training import build_learner

    run = printed("exchanges/groups.py")
    learner = build_learner(run.config, run.config.data.channels)
    schema = Schemas.of(learner, run.config).shared
    start = torch.from_numpy(schema.pack(learner.state(Role.SHARED)))
    first = torch.from_numpy(schema.pack(run.checkpoint))
    second = run.checkpoint["models/group-1/shared"]
    assert not torch.equal(first, start)
    assert not torch.equal(second, start) and not torch.equal(second, first)


def test_partition(printed):
    from orchestra_flwr.federation.population import load_population

    run = printed("partitions/shrinking.py")
    sizes = [len(part) for part in load_population(run.config).parts.values()]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > 4 * sizes[-1]
    assert run.rounds[-1]["clients"]["examples"] == sum(sizes)


def test_shift(printed, run):
    from orchestra_flwr.data import load_dataset, shift_images

    shifted, plain = printed("shifts/brightness.py"), run("method=simclr")
    assert shifted.loss != plain.loss
    images, indices = load_dataset(plain.config.data).train.images[:9], torch.arange(9)
    ones, others = (shift_images(shifted.config.shift, images, indices, c, 0) for c in "01")
    assert not torch.equal(ones, images) and not torch.equal(ones, others)


def test_source(printed, exact_probes):
    run = printed("sources/stripes.py")
    about = json.loads((run.folder / "encoder.json").read_text())["about"]
    assert about["data"] == "stripes"
    assert run.rounds[-1]["scores"]["online"]["linear"] > 0.5  # chance is .25


def test_backbone(printed):
    run = printed("backbones/patches.py")
    about = json.loads((run.folder / "encoder.json").read_text())
    assert about["spec"]["model"]["name"] == "patches"
    assert about["spec"]["plugins"] == ["my_package"]
    encoder = load_encoder(run.folder)
    assert encoder(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).shape == (2, 64)


def test_adaptation(printed):
    from orchestra_flwr.training import build_learner

    run = printed("adaptations/biases.py")
    start = build_learner(run.config, run.config.data.channels).method.backbone.state_dict()
    after = {name: run.checkpoint.get(f"backbone.{name}", start[name]) for name in start}
    moved = {name for name, tensor in start.items() if not torch.equal(after[name], tensor)}
    assert moved == {name for name in start if name.endswith("bias")} != set()


def test_optimizer(printed):
    """One client, one step: every weight has moved by lr."""
    run = printed("optimizers/sign.py", "federation.clients=1", "data.train_limit=16")
    moved = [(run.checkpoint[n] - t).abs() for n, t in initial(run.config).items()]
    moved = torch.cat([tensor.flatten() for tensor in moved])
    assert torch.allclose(moved[moved > 0], torch.tensor(0.001), rtol=1e-3)
    assert (moved > 0).float().mean() > 0.5


def test_schedule(printed, run):
    """Two epochs: the first at half the rate, so it ends elsewhere than at the full one."""
    chosen = ("training.local_epochs=2", "federation.clients=1")
    warm = printed("schedules/warm_up.py", *chosen)
    from orchestra_flwr.training.schedules import LocalProgress

    schedule = warm.config.schedule.build()
    assert [schedule.factor(LocalProgress(1, 1, epoch, 2)) for epoch in (0, 1)] == [0.5, 1]
    plain = run("method=simclr", *chosen)
    name = next(iter(initial(plain.config)))
    assert not torch.equal(warm.checkpoint[name], plain.checkpoint[name])


def test_engine(printed, run):
    slow, plain = printed("engines/slow_link.py"), run("method=simclr")
    assert slow.loss == plain.loss
    sent = slow.rounds[-1]["bytes_up"]
    assert slow.rounds[-1]["seconds"] > sent / 2e6


def test_a_resumed_run_names_its_packages_again(printed, capsys):
    run = printed("terms/feature_size.py", "federation.rounds=2")
    assert main([f"resume={run.folder}", "plugins=[my_package]"]) == 0
    assert "my_package" in (run.folder / "config.yaml").read_text()


def test_a_wrong_option_is_told_in_one_line(user_package, tiny_overrides, capsys):
    files, command = EXAMPLES["methods/contrast.py"]
    user_package(files)
    assert main([*tiny_overrides, *command, "method.temprature=1"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "did you mean method.temperature?" in error


@pytest.mark.parametrize("program", ["orchestra-server", "orchestra-client"])
def test_the_commands_for_real_clients_compose(user_package, program):
    from orchestra_flwr.config import load
    from orchestra_flwr.deployment.client_config import ClientConfig
    from orchestra_flwr.deployment.server_config import ServerConfig

    user_package(EXAMPLES["methods/contrast.py"][0])
    text = (ROOT / "docs" / "contributing.md").read_text()
    (command,) = re.findall(rf"^{re.escape(program)} (.*)$", text, re.M)
    kind = {"orchestra-server": ServerConfig, "orchestra-client": ClientConfig}[program]
    assert load(kind, command.split()).plugins == ("my_package",)


def test_clock(printed):
    lines = [line["virtual_seconds"] for line in printed("clocks/two_kinds.py").rounds]
    assert lines[0] == 0 and lines[1] > 1  # a phone's images at 20 a second
