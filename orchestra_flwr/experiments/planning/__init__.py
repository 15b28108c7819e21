"""What is run: the paper's experiments as data, their scales, and the runs that follow."""

from orchestra_flwr.experiments.planning.classes_held import classes_held_by_clients
from orchestra_flwr.experiments.planning.description import (
    SCALES,
    Experiment,
    Measure,
    Presentation,
    Scale,
    experiment_names,
    load_experiment,
    load_scale,
)
from orchestra_flwr.experiments.planning.plan import Plan, make_plan, read_plans
from orchestra_flwr.experiments.planning.rows import Row, run_name
from orchestra_flwr.experiments.planning.scaling import scaled_local_epochs, scaled_lr

__all__ = [
    "SCALES",
    "Experiment",
    "Measure",
    "Plan",
    "Presentation",
    "Row",
    "Scale",
    "classes_held_by_clients",
    "experiment_names",
    "load_experiment",
    "load_scale",
    "make_plan",
    "read_plans",
    "run_name",
    "scaled_local_epochs",
    "scaled_lr",
]
