"""What the `flwr` command is given to read, and what is shown of its complaints."""

import tomllib
from pathlib import Path

import pytest

from orchestra_flwr.deployment.processes.flower_command import Flower, FlowerError


@pytest.mark.parametrize("name", ["plain", 'a "quoted" one', "back\\slash", "Schlüssel"])
def test_any_folder_may_hold_the_keys(tmp_path, name):
    ca = tmp_path / name / "ca.crt"
    Flower(tmp_path, "127.0.0.1:1", ca)
    (config,) = tmp_path.rglob("config.toml")
    read = tomllib.loads(config.read_text(encoding="utf-8"))
    assert Path(read["superlink"]["orchestra"]["root-certificates"]) == ca.resolve()


def test_what_flower_says_is_shown_as_one_line(tmp_path, monkeypatch):
    flower = Flower(tmp_path, "127.0.0.1:1", None)
    outcome = {"success": False, "error-message": "Using a SuperLink\n\nIt  failed."}
    monkeypatch.setattr(flower, "_call", lambda commands: [outcome])
    with pytest.raises(FlowerError) as failed:
        flower.start_run("a channel")
    assert str(failed.value) == "the run could not be started: Using a SuperLink It failed."
