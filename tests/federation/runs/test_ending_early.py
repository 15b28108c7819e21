"""A run that is stopped, and ended where it stands: as if it had had no more rounds."""

import json
import os
import shlex
import signal

import pytest

from orchestra_flwr import simulate
from orchestra_flwr.cli import main
from orchestra_flwr.config import ConfigError, load_config
from orchestra_flwr.federation.engines import inline
from orchestra_flwr.reporting import RunFolder

OF_THE_CLOCK = ("seconds", "versions")


@pytest.fixture
def read(tiny_overrides):
    """The whole command line of a run, without keys that its method does not read."""

    def overrides_of(overrides):
        clusters = not any(override.startswith("method=") for override in overrides)
        base = [
            override
            for override in tiny_overrides
            if clusters or not override.startswith("clustering.")
        ]
        return [*base, *overrides]

    return overrides_of


@pytest.fixture
def stop(read, tmp_path, monkeypatch, watched, capsys):
    """Presses Ctrl-C while a client trains in a round; returns the folder and the last line."""

    def run(*overrides, during):
        def look(client, round_, sent, reply):
            if round_ == during:
                os.kill(os.getpid(), signal.SIGINT)

        folder = tmp_path / "run"
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & ignores it
        try:
            with monkeypatch.context() as patch:
                patch.setattr(inline, "client_app", watched(look))
                code = main([*read(overrides), "federation.rounds=4", f"run_dir={folder}"])
        finally:
            signal.signal(signal.SIGINT, before)
        assert code == 130
        return folder, capsys.readouterr().err.splitlines()[-1]

    return run


def result(folder):
    """What a run leaves, but for what depends on the clock."""
    summary = json.loads((folder / "summary.json").read_text())
    files = ("encoder.safetensors", "encoder.json")
    return [
        {key: value for key, value in summary.items() if key not in OF_THE_CLOCK},
        *((folder / name).read_bytes() for name in files),
    ]


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("evaluation.every=5", "evaluation.keep=best", "method=simclr"),
        ("evaluation.every=5", "method=byol", "exchange=clusters", "exchange.warm_rounds=1"),
    ],
    ids=" ".join,
)
@pytest.mark.slow
def test_it_is_the_run_of_so_many_rounds_and_can_still_go_on(stop, read, tmp_path, overrides):
    folder, line = stop(*overrides, during=3)
    continued, ended = line.partition("continue with: ")[2].split("; or end it there: ")
    assert line.startswith("stopped after round 2 of 4; continue with: ")
    command = ["python", "run_sim.py", f"resume={folder}"]
    assert shlex.split(continued) == command
    assert shlex.split(ended) == [*command, "federation.rounds=2"]
    assert main(shlex.split(ended)[2:]) == 0
    whole = {rounds: tmp_path / f"whole-{rounds}" for rounds in (2, 4)}
    for rounds, path in whole.items():
        assert main([*read(overrides), f"federation.rounds={rounds}", f"run_dir={path}"]) == 0
    assert result(folder) == result(whole[2])
    assert main(shlex.split(continued)[2:]) == 0
    assert result(folder) == result(whole[4])


def test_with_a_schedule_it_ends_where_it_is_and_nowhere_else(stop, capsys):
    folder, _ = stop("schedule=cosine", during=3)
    before = (folder / "config.yaml").read_bytes()
    for rounds in (1, 3):
        assert main([f"resume={folder}", f"federation.rounds={rounds}"]) == 2
        assert capsys.readouterr().err == (
            f"error: federation.rounds={rounds}: must be 2, to end the run where it is, "
            f"or at least 4, the rounds that {folder} has\n"
        )
    assert main([f"resume={folder}", "resume_round=1", "federation.rounds=1"]) == 0
    assert json.loads((folder / "summary.json").read_text())["rounds"] == 1
    assert (folder / "config.yaml").read_bytes() == before  # its rates were those of four rounds
    assert main([f"resume={folder}"]) == 0
    with pytest.raises(ConfigError, match="^federation.rounds=3: must be at least 4, the rounds"):
        RunFolder.check(load_config([f"resume={folder}", "federation.rounds=3"]))


def test_before_anything_is_trained_there_is_nothing_to_end(stop, capsys):
    folder, line = stop(during=1)
    advice = f"continue with: python run_sim.py resume={folder}"
    assert line == f"stopped before round 1 was done; {advice}"
    assert main([f"resume={folder}", "federation.rounds=1"]) == 2
    assert "federation.rounds=1: must be at least 4, the rounds" in capsys.readouterr().err


def test_from_python_a_note_says_how_it_goes_on(tiny_overrides, tmp_path):
    def report(round_):
        if round_["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        simulate([*tiny_overrides, f"run_dir={tmp_path / 'run'}"], progress=report)
    resume = f"resume={tmp_path / 'run'}"
    advice = f"continue with: {resume}; or end it there: {resume} federation.rounds=1"
    assert stopped.value.__notes__ == [advice]
    assert simulate([resume, "federation.rounds=1"]).summary["rounds"] == 1
