"""What a process must not import: each of these costs seconds, in every worker of every run."""

import subprocess
import sys

import pytest

# By what is imported: libraries and rooms that it has no use for.
HEAVY = ("matplotlib", "pandas", "ray", "scipy", "sklearn", "torchvision", "tensorboard")
HEAVY += ("wandb", "mlflow")
FILES_OF_HYDRA = ("antlr4", "hydra", "omegaconf")
COMPILER = ("torch._dynamo", "torch._inductor")
SERVER = tuple(
    f"orchestra_flwr.{room}"
    for room in ("cli", "deployment", "experiments", "federation.server.loop", "reporting")
)
REFUSED = {
    "import orchestra_flwr": ("flwr", "numpy", "pydantic", "torch", *HEAVY, *FILES_OF_HYDRA),
    "import orchestra_flwr.config": ("flwr", "torch", *HEAVY, *FILES_OF_HYDRA),
    "import orchestra_flwr.cli": ("flwr", "torch", *HEAVY),
    # Whole commands: one asks a server again and again, the others say that they start.
    "import orchestra_flwr.deployment.watch.top": ("flwr", "torch", *HEAVY),
    "import orchestra_flwr.deployment.client_config": ("flwr", "torch", *HEAVY),
    "import orchestra_flwr.deployment.server_config": ("flwr", "torch", *HEAVY),
    # The server draws the split with matplotlib before the first round.
    "import orchestra_flwr.federation.simulation": (
        "flwr.simulation",
        "fastapi",
        "sqlalchemy",
        "pandas",
        "ray",
        "scipy",
        "sklearn",
        "torchvision",
        *COMPILER,
    ),
}


def imported(program, *arguments):
    """The modules of a new process after a program."""
    script = f"import sys\n{program}\nprint('modules:', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
    )
    return set(done.stdout.rpartition("modules:")[2].split())


def test_an_import_leaves_out_what_takes_seconds():
    """In one process: none of them may import what the next one is refused."""
    told = "\n".join(f"{program}\nprint('modules:', *sys.modules)" for program in REFUSED)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{told}"], capture_output=True, text=True, check=True
    )
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("modules:")]
    found = {p: {*line} & {*REFUSED[p]} for p, line in zip(REFUSED, lines, strict=True)}
    assert not any(found.values()), found


@pytest.mark.parametrize(
    "command",
    [
        "client_main(['server=127.0.0.1:1', 'data.root=.', 'insecure=true'])",
        "server_main(['insecure=true'])",
    ],
)
def test_a_server_and_a_client_say_that_they_start_before_they_import_what_takes_a_minute(command):
    """On a busy machine nothing was said for 20 to 80 s."""
    program = (
        f"import sys; sys.modules['torch'] = None; from orchestra_flwr import cli; cli.{command}"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == "starting PyTorch and Flower ...\n"
    assert "import of torch halted" in done.stderr


def test_no_run_imports_the_compiler(tiny):
    """The size of a model is asked for before a run starts, and its rules take up to 2.4 s to
    import; torch.optim's L-BFGS, which could fit linear probes, takes as long."""
    program = """if True:
        import torch
        from orchestra_flwr.config import Config
        from orchestra_flwr.evaluation.linear_probe import fit_linear_probe
        from orchestra_flwr.training import check_model
        for config in sys.argv[1:]:
            check_model(Config.from_json(config), 1)
        fit_linear_probe(torch.eye(4), torch.arange(4))
    """
    mae = ("method=mae", "model=vit_tiny", "model.width=24")
    configs = [tiny(*given).to_json() for given in ((), ("method=dino",), mae)]
    assert not imported(program, *configs) & {"sympy", *COMPILER}


def test_a_worker_imports_only_what_a_client_needs(tiny):
    """With the run's images and the learner, and after a round with each optimizer."""
    program = """if True:
        from orchestra_flwr.federation.client import client_app
        from orchestra_flwr.seeding import ClientSeed
        from orchestra_flwr.training import build_learner, train_round
        for argument in sys.argv[1:]:
            config, population, images, labels = client_app._loaded(argument)
            learner = build_learner(config, images.shape[1])
            train_round(learner, images[:8], config, ClientSeed(0, 1, "0"), contribute=False)
    """
    configs = [
        tiny("schedule=steps", f"optimizer={name}").to_json() for name in ("sgd", "adam", "adamw")
    ]
    modules = imported(program, *configs)
    refused = {*HEAVY, *FILES_OF_HYDRA, *COMPILER, *SERVER, "flwr.simulation"}
    assert not modules & refused
    assert "orchestra_flwr.methods.orchestra" in modules
