"""What is run: the paper's experiments as data, their scales, and the runs that follow."""

from orchestra_flwr.experiments.planning.description import (
    SCALES,
    Experiment,
    Measure,
    Scale,
    View,
    experiment_names,
    load_experiment,
    load_scale,
)
from orchestra_flwr.experiments.planning.plan import Plan, Row, make_plan, read_plans, run_name
from orchestra_flwr.experiments.planning.scaling import scaled_local_epochs, scaled_lr
from orchestra_flwr.experiments.planning.split import classes_held_by_clients

__all__ = [
    "SCALES",
    "Experiment",
    "Measure",
    "Plan",
    "Row",
    "Scale",
    "View",
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
