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
    # The server draws the split with matplotlib before the first round.
    "import orchestra_flwr.federation.simulation": (
        "flwr.simulation",
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


@pytest.mark.parametrize("program", REFUSED)
def test_an_import_leaves_out_what_takes_seconds(program):
    assert not imported(program) & set(REFUSED[program])


def test_the_size_of_a_model_is_known_without_the_compiler(tiny):
    """It is asked for before a run starts, and its rules take up to 2.4 s to import."""
    program = """if True:
        from orchestra_flwr.config import Config
        from orchestra_flwr.training import check_memory
        for config in sys.argv[1:]:
            check_memory(Config.from_json(config), 1)
    """
    mae = ("method=mae", "model=vit_tiny", "model.width=24")
    configs = [tiny(*given).to_json() for given in ((), ("method=dino",), mae)]
    assert not imported(program, *configs) & {"sympy", *COMPILER}


def test_a_worker_imports_only_what_a_client_needs(tiny):
    """With the run's images and the learner, as before its first step."""
    program = """if True:
        from orchestra_flwr.federation.client import client_app
        from orchestra_flwr.training import build_learner
        config, population, images, labels = client_app._loaded(sys.argv[1])
        build_learner(config, images.shape[1])
    """
    modules = imported(program, tiny().to_json())
    refused = {*HEAVY, *FILES_OF_HYDRA, *COMPILER, *SERVER, "flwr.simulation"}
    assert not modules & refused
    assert "orchestra_flwr.methods.orchestra" in modules
