"""Tab completion, in a real bash."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from orchestra_flwr.cli import client_main, main
from orchestra_flwr.commands.completion import completion_script
from orchestra_flwr.config import Config
from orchestra_flwr.config.reading.hydra_overrides import rooms_of

NO_KEYS = (".defaults", ".name", ".paper", ".augmentation")  # in files, of which none is given


def completed(script, program, line):
    """What bash would offer after this line."""
    name = program.replace("-", "_")
    asked = f'{script}\nCOMP_LINE="{line}"; COMP_POINT={len(line)}; _{name}\n'
    return subprocess.run(
        ["bash", "--norc", "-c", asked + "printf '%s\\n' \"${COMPREPLY[@]}\""],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip


@pytest.fixture(autouse=True)
def _bash():
    if shutil.which("bash") is None:
        pytest.skip("needs bash")


def test_words_are_completed():
    script = completion_script(["orchestra-sim"], ["seed=", "method=byol", "method=simclr"])
    assert completed(script, "orchestra-sim", "orchestra-sim s") == ["seed="]
    assert completed(script, "orchestra-sim", "orchestra-sim seed=1 m") == [
        "method=byol", "method=simclr",
    ]  # fmt: skip
    assert completed(script, "orchestra-sim", "orchestra-sim method=s") == ["simclr"]
    assert completed(script, "orchestra-sim", "orchestra-sim x") == []


def test_the_commands_complete_keys_and_choices(capsys):
    assert main(["--completion"]) == 0
    script = capsys.readouterr().out
    assert completed(script, "orchestra-sim", "orchestra-sim federation.r") == [
        "federation.round_timeout=", "federation.rounds=",
    ]  # fmt: skip
    assert "simclr" in completed(script, "orchestra-sim", "orchestra-sim method=")
    assert "--multirun" in completed(script, "orchestra-sim", "orchestra-sim --")
    assert client_main(["--completion"]) == 0
    script = capsys.readouterr().out
    assert completed(script, "orchestra-client", "orchestra-client serv") == ["server="]


def test_keys_and_values_of_choices_that_are_not_taken_are_completed(capsys):
    assert main(["--completion"]) == 0
    script = capsys.readouterr().out

    def of(words):
        return completed(script, "orchestra-sim", f"orchestra-sim {words}")

    assert of("data.ro") == ["data.root="] and of("partition.be") == ["partition.beta="]
    assert of("evaluation.probe=") == ["converged", "dec_ssl", "fixed", "published"]
    assert of("model.batch_norm=") == ["averaged", "frozen", "local", "null", "recalibrated"]
    assert of("logging.wandb=t") == ["true"]
    assert of("clustering.solver=a") == ["alternating"]
    assert of("federation.min_c") == []  # a server's


def test_every_key_that_a_file_has_is_completed(capsys):
    """Those of all choices, whichever is taken."""
    assert main(["--completion"]) == 0
    offered = set(re.findall(r"[\w.]+(?==)", capsys.readouterr().out))
    conf = Path(__file__).parents[2] / "conf"
    missing = set()
    for room in rooms_of(Config):
        for file in (conf / room).glob("*.yaml"):
            section = f"terms.{file.stem}" if room == "terms" else room
            values = yaml.safe_load(file.read_text()) or {}
            entries = values.get(room, {}) if "@package _global_" in file.read_text() else values
            keys = {f"{section}.{key}" for key in entries}
            missing |= {k for k in keys - offered if not k.endswith(NO_KEYS)}
    assert missing == set()
