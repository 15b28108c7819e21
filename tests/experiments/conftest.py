"""Run folders as runs and experiments leave them, with results made up by a test."""

import functools
import itertools
import json

import pytest

from orchestra_flwr.config import config_to_yaml, load_config
from orchestra_flwr.experiments.planning.description import load_experiment, load_scale
from orchestra_flwr.experiments.planning.plan import Plan
from orchestra_flwr.experiments.planning.rows import Row

VERSIONS = {"orchestra_flwr": "0.1.0", "python": "3.11", "cpu": "Abacus 9", "commit": "abc123"}


@functools.cache
def _config(overrides):
    return config_to_yaml(load_config(overrides))


@pytest.fixture
def make_run(tmp_path):
    """Writes a run folder; None as its summary: it has not ended."""

    def make(name, summary, *, metrics=(), finetune=None, overrides=(), folder=tmp_path):
        path = folder / name
        path.mkdir(parents=True)
        (path / "config.yaml").write_text(_config(("data=cifar10", *overrides)))
        lines = [json.dumps({"round": n, **record}) + "\n" for n, record in enumerate(metrics)]
        (path / "metrics.jsonl").write_text("".join(lines))
        if summary is not None:
            summary = {"seconds": 60.0, "bytes_up": 10, "bytes_down": 20, **summary}
            (path / "summary.json").write_text(json.dumps({"versions": VERSIONS, **summary}))
        if finetune is not None:
            (path / "evaluation").mkdir()
            shares = {share: {"mean": mean} for share, mean in finetune.items()}
            text = json.dumps({"dataset": "cifar10", "finetune": shares})
            (path / "evaluation" / "finetuning.json").write_text(text)
        return path

    return make


@pytest.fixture
def make_experiment(tmp_path, make_run):
    """An experiment whose runs hold what `results(values, seed)` returns; None: it is missing.

    Its rows are not composed: the methods that they name need not be there.
    """

    def make(name, scale, results, seeds=(0, 1), folder=tmp_path):
        experiment, settings = load_experiment(name), load_scale(scale)
        axes = {
            axis: list(settings.axes[choices] if isinstance(choices, str) else choices)
            for axis, choices in {**experiment.axes, **experiment.at(scale).axes}.items()
        }
        rows = []
        for number, cells in enumerate(itertools.product(*axes.values())):
            values = dict(zip(axes, cells, strict=True))
            for seed in seeds:
                run = f"{name}-{scale}-{number}-s{seed}"
                content = results(values, seed)
                if content == "leave out":
                    continue
                rows.append(Row(values=values, seed=seed, overrides=("data=cifar10",), run=run))
                if content is not None:
                    make_run(run, overrides=(f"seed={seed}",), folder=folder, **content)
        plan = Plan(
            name=name,
            scale=scale,
            command=f"orchestra-experiment experiment={name} scale={scale}",
            experiment=experiment,
            settings=settings,
            rows=tuple(rows),
        )
        plan.write(folder)
        return plan

    return make
