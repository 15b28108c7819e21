"""Tab completion, in a real bash."""

import shutil
import subprocess

import pytest

from orchestra_flwr.cli import client_main, main
from orchestra_flwr.commands.completion import completion_script


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
        "federation.rounds=", "federation.round_timeout=",
    ]  # fmt: skip
    assert "simclr" in completed(script, "orchestra-sim", "orchestra-sim method=")
    assert "--multirun" in completed(script, "orchestra-sim", "orchestra-sim --")
    assert client_main(["--completion"]) == 0
    script = capsys.readouterr().out
    assert completed(script, "orchestra-client", "orchestra-client serv") == ["server="]
