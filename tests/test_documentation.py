"""README tells the truth about names."""

import io
import re
from pathlib import Path

import pytest

from orchestra_flwr.cli import EXPERIMENT_KEYS
from orchestra_flwr.config import Config, EvaluateConfig, MethodConfig, load, load_config
from orchestra_flwr.deployment.client_config import ClientConfig
from orchestra_flwr.deployment.keys import main as keys_main
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.experiments import experiment_names, load_experiment, load_scale
from orchestra_flwr.methods import METHODS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


GUIDES = [README, *(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))]
PROGRAMS = {
    "run_sim.py": Config,
    "run_server.py": ServerConfig,
    "run_client.py": ClientConfig,
    "python -m orchestra_flwr.evaluation": EvaluateConfig,
}


def commands():
    for line in "\n".join(GUIDES).replace("\\\n", " ").splitlines():
        for program in PROGRAMS:
            if f"{program} " in line:
                words = line.split(program, 1)[1].split(" #")[0].strip("` ").split()
                arguments = [w for w in words if re.fullmatch(r"[\w.]+=[^<>`]+", w)]
                if arguments and words[0] == arguments[0] and "resume=" not in line:
                    yield program, arguments


def test_there_are_commands_of_every_program():
    assert {program for program, _ in commands()} == set(PROGRAMS)


@pytest.mark.parametrize(("program", "arguments"), [*commands()])
def test_every_command_in_the_guides_composes(program, arguments):
    load(PROGRAMS[program], arguments)


def test_every_experiment_in_the_guides_is_there_and_the_other_way_round():
    given = re.findall(r"run_experiment\.py (experiment=[^#`\n]*)", "\n".join(GUIDES))
    assert given
    for line in given:
        words = dict(word.split("=", 1) for word in line.split())
        load_experiment(words["experiment"])
        load_scale(words.get("scale", "small"))
        load_config([
            f"{key}={value}"
            for key, value in words.items()
            if key not in (*EXPERIMENT_KEYS, "data.root")
        ])  # fmt: skip
    guide = (ROOT / "docs" / "experiments.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", guide, re.M) == experiment_names()


def key_commands():
    found = re.findall(r"deployment\.keys ([a-z]+[^`\n]*)", "\n".join(GUIDES))
    return [line.split() for line in found]


def test_every_command_about_keys_runs_as_it_stands_in_the_guides(tmp_path, monkeypatch, capsys):
    """In the guide's order; only the key that is registered is the one made a line before."""
    monkeypatch.chdir(tmp_path)
    ran = []
    for arguments in key_commands():
        if arguments[0] == "register":
            made = (tmp_path / "security" / "client.pub").read_text()
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(made.encode())))
        assert keys_main(arguments) == 0, capsys.readouterr().err
        ran.append(arguments[0])
    assert ran == ["server", "client", "register"]
    assert len(list((tmp_path / "security" / "clients").iterdir())) == 1


def test_links_between_the_guides_lead_somewhere():
    for guide, folder in ((README, ROOT), *((text, ROOT / "docs") for text in GUIDES[1:])):
        for target in re.findall(r"\]\((?!http)([^)#]+)", guide):
            assert (folder / target).exists(), target


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
    config = config.model_copy(update={"method": MethodConfig(name="rotation_only")})
    method = names["RotationOnly"](config, 1)
    images = torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8)
    result = train_round(
        method, images, config.training, config.data.augmentation, ClientSeed(0, 1, "0")
    )
    assert set(result.losses) == {"rotation"} and result.steps == 6
