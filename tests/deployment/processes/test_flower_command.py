"""What the `flwr` command is given to read, and what is shown of its complaints."""

import sys
import tomllib

import pytest

from orchestra_flwr.deployment.processes import flower_command
from orchestra_flwr.deployment.processes.flower_command import Flower, FlowerError


@pytest.mark.parametrize("name", ["plain", 'a "quoted" one', "back\\slash", "Schlüssel"])
def test_any_folder_may_hold_the_keys(tmp_path, name, monkeypatch):
    """The certificate is handed over as an argument of a process."""
    ca = tmp_path / name / "ca.crt"
    program = 'import json, sys; print(json.dumps({"success": True, "run-id": 5}), end="\\0")'
    program += f"; assert sys.argv[2] == {str(ca.resolve())!r}, sys.argv"
    monkeypatch.setattr(
        flower_command,
        "python_command",
        lambda _, *arguments: [sys.executable, "-c", program, *arguments],
    )
    assert Flower(tmp_path, tmp_path / "link", ca).start_run() == 5
    (config,) = tmp_path.rglob("config.toml")
    assert tomllib.loads(config.read_text(encoding="utf-8"))["superlink"]["orchestra"] == {
        "address": "127.0.0.1:1",
        "insecure": False,
    }


def test_what_flower_says_is_shown_as_one_line(tmp_path, monkeypatch):
    flower = Flower(tmp_path, tmp_path / "link", None)
    outcome = {"success": False, "error-message": "Using a SuperLink\n\nIt  failed."}
    monkeypatch.setattr(flower, "_call", lambda commands: [outcome])
    with pytest.raises(FlowerError) as failed:
        flower.start_run()
    assert str(failed.value) == "the run could not be started: Using a SuperLink It failed."
