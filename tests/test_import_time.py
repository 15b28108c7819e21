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
    # A script that catches them may end before a run begins.
    "from orchestra_flwr import ConfigError, FederationError": ("flwr", "torch", *HEAVY),
    "import orchestra_flwr.cli": ("flwr", "torch", *HEAVY),
    # Whole commands: one asks a server again and again, one lists runs, the others say that they
    # start.
    "import orchestra_flwr.deployment.watch.top": ("flwr", "torch", *HEAVY),
    "import orchestra_flwr.deployment.client_config": ("flwr", "torch", *HEAVY),
    "import orchestra_flwr.deployment.server_config": ("flwr", "torch", *HEAVY),
    "import orchestra_flwr.deployment.processes.submit_command": ("flwr", "torch", *HEAVY),
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
    """The modules of a new process where a program prints them, and at its end."""
    script = f"import sys\n{program}\nprint('modules:', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    return [{*line} for line in lines if line[:1] == ["modules:"]]


def test_an_import_leaves_out_what_takes_seconds():
    """In one process: none of them may import what the next one is refused."""
    program = "\nprint('modules:', *sys.modules)\n".join(REFUSED)
    pairs = zip(REFUSED, imported(program), strict=True)
    wrong = {program: modules & {*REFUSED[program]} for program, modules in pairs}
    assert not any(wrong.values()), wrong


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


def test_a_worker_imports_only_what_a_client_needs_and_no_run_the_compiler(tiny):
    """A client's round with each optimizer; then what a run does before and after its rounds: the
    size of a model is asked for, whose rules take up to 2.4 s to import, and probes are fitted, for
    which torch.optim's L-BFGS takes as long."""
    program = """if True:
        from orchestra_flwr.config import Config
        from orchestra_flwr.federation.client import client_app
        from orchestra_flwr.seeding import ClientSeed
        from orchestra_flwr.training import build_learner, check_model, train_round
        for argument in sys.argv[1:4]:
            config, population, images, labels = client_app._loaded(argument)
            learner = build_learner(config, images.shape[1])
            train_round(learner, images[:8], config, ClientSeed(0, 1, "0"), contribute=False)
        print("modules:", *sys.modules)
        import torch
        from orchestra_flwr.evaluation.linear_probe import fit_linear_probe
        for argument in sys.argv[3:]:
            check_model(Config.from_json(argument), 1)
        fit_linear_probe(torch.eye(4), torch.arange(4))
    """
    workers = [tiny("schedule=steps", f"optimizer={n}") for n in ("sgd", "adam", "adamw")]
    mae = tiny("method=mae", "model=vit_tiny", "model.width=24")
    private = tiny("clustering=private", "privacy.epsilon=20", "terms.verification.weight=1")
    configs = [*workers, tiny("method=dino"), mae, private]
    of_a_client, at_the_end = imported(program, *(config.to_json() for config in configs))
    refused = {*HEAVY, *FILES_OF_HYDRA, *COMPILER, *SERVER, "flwr.simulation"}
    assert not of_a_client & refused
    assert "orchestra_flwr.methods.orchestra" in of_a_client
    assert not at_the_end & {"sympy", *COMPILER}
