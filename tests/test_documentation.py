"""README tells the truth about names."""

import re
from pathlib import Path

import pytest

from orchestra_flwr.config import load_config
from orchestra_flwr.methods import METHODS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def commands():
    return [
        line.split("run_sim.py", 1)[1].split()
        for line in README.splitlines()
        if "run_sim.py " in line
    ]


@pytest.mark.parametrize("command", [c for c in commands() if c and "=" in c[0]], ids=" ".join)
def test_every_command_in_the_readme_composes(command):
    arguments = [a for a in command if re.fullmatch(r"[\w.]+=[^<>`]+", a)]
    if not any(a.startswith("resume=") for a in arguments):
        load_config(arguments)


def test_every_key_in_the_configuration_table_exists():
    values = load_config().model_dump()
    rows = [line for line in README.splitlines() if line.startswith("| `")]
    keys = {k for row in rows for k in re.findall(r"`(\w+\.\w+)`", row)}
    assert len(keys) > 10
    for key in keys:
        section, name = key.split(".")
        assert name in values[section], key


def test_every_method_has_its_configuration():
    assert set(METHODS) == {path.stem for path in (ROOT / "conf" / "method").glob("*.yaml")}


def test_the_method_that_the_readme_shows_works(tiny):
    """The example is code, not prose."""
    import torch

    example = re.search(r"```python\n(class RotationOnly.*?)```", README, re.S).group(1)
    names: dict = {}
    imports = (
        "from torch import nn\nimport torch.nn.functional as F\n"
        "from orchestra_flwr.config import Section\nfrom orchestra_flwr.data import Recipe\n"
        "from orchestra_flwr.methods import Method, Role\n"
        "from orchestra_flwr.models import build_backbone\n"
    )
    exec(imports + example, names)
    from orchestra_flwr.seeding import ClientSeed
    from orchestra_flwr.training import train_round

    config = tiny("training.local_epochs=2")
    method = names["RotationOnly"](config, 1)
    images = torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8)
    result = train_round(
        method, images, config.training, config.data.augmentation, ClientSeed(0, 1, 0)
    )
    assert set(result.losses) == {"rotation"} and result.steps == 6
