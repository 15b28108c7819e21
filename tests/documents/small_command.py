"""Runs a printed command as it stands, made small: `small_command.py PROGRAM argument ...`.

All that is added to what the guides print stands in this file.
"""

import runpy
import sys
from pathlib import Path

from orchestra_flwr import cli
from orchestra_flwr.config import load_config, swept_values, without_unread
from orchestra_flwr.experiments.__main__ import main as report_main

ROOT = Path(__file__).parents[2]
# A run of a few seconds on one core. What a run does not read is left out.
SMALL = (
    "engine=inline", "device=cpu", "model.width=8", "model.projector_dim=16",
    "data.train_limit=64", "data.test_limit=24", "data.image_size=16", "federation.clients=4",
    "federation.participation=1", "federation.rounds=1", "training.local_epochs=1",
    "training.batch_size=8", "training.threads=1", "clustering.global_clusters=4",
    "clustering.local_clusters=2", "clustering.memory=16", "evaluation.every=1",
    "logging.progress=plain",
)  # fmt: skip
PHOTOGRAPHS = ("data=image_folder", "data.root=photos.zip")  # in place of CIFAR-10, which is large
PROGRAMS = {
    "orchestra-sim": cli.main,
    "orchestra-embed": cli.embed_main,
    "orchestra-label": cli.label_main,
    "orchestra-compare": cli.compare_main,
    "orchestra-export": cli.export_main,
    "orchestra-experiment": cli.experiment_main,
    "orchestra-evaluate": cli.evaluate_main,
    "orchestra-report": report_main,
}
# What is added for the others: a page and an export take seconds as they are.
ADDED = {
    "python benchmarks/toy_theory.py": ("--dimensions", "100", "--sources", "2"),
    "orchestra-evaluate": ("data.image_size=16",),  # as small encoders have it
}


def small(printed):
    """What is appended to the key=value of a printed run."""
    words = [word for word in printed if "=" in word and not word.startswith("-")]
    values = words
    if "-m" in printed:  # of a sweep the first run
        several = zip(words, swept_values(words), strict=True)
        values = [f"{word.partition('=')[0]}={swept[0]}" for word, swept in several]
    config = load_config(values)
    added = PHOTOGRAPHS if config.data.name == "cifar10" else ()
    # Central training, which the command is about, as many clients as there are classes, as many as
    # fill a buffer, and a share of them on which other keys depend.
    fixed = config.federation.clients < 4 or config.partition.name == "by_class"
    starts = ["federation.clients="] * (fixed or config.exchange.name == "buffered")
    starts += ["federation.participation="] * (config.federation.participation < 1)
    chosen = [key for key in SMALL if not key.startswith(tuple(starts))]
    composed = load_config([*values, *added, *chosen])
    return [*added, *without_unread(composed, chosen)]


def first_run_alone(make_plan):
    """An experiment's first run, in place of all."""

    def make(*arguments, **options):
        plan, _ = make_plan(*arguments, **options)
        row = plan.rows[0]
        overrides = (*row.overrides, *small(row.overrides))
        row = row.model_copy(update={"overrides": overrides})
        return plan.model_copy(update={"rows": (row,)}), {row.run: load_config(overrides)}

    return make


def main():
    program, *arguments = sys.argv[1:]
    if program == "python":
        script, *rest = arguments
        sys.argv = [script, *rest, *ADDED.get(f"python {script}", ())]
        sys.path[0] = str(ROOT / "benchmarks")  # as Python has it
        runpy.run_path(str(ROOT / script), run_name="__main__")
        return 0
    if program == "orchestra-sim":
        arguments += small(arguments)
    if program == "orchestra-experiment":
        from orchestra_flwr.experiments import sweep_commands

        sweep_commands.make_plan = first_run_alone(sweep_commands.make_plan)
    sys.argv = [program, *arguments, *ADDED.get(program, ())]
    return PROGRAMS[program]()


if __name__ == "__main__":
    sys.exit(main())
