"""The paper's experiments as data: what they vary, at which scale, and the runs that follow."""

from orchestra_flwr.experiments.description import (
    SCALES,
    Experiment,
    Measure,
    Scale,
    View,
    experiment_names,
    load_experiment,
    load_scale,
)
from orchestra_flwr.experiments.plan import Plan, Row, make_plan, read_plans, run_name
from orchestra_flwr.experiments.scaling import scaled_local_epochs, scaled_lr
from orchestra_flwr.experiments.split import classes_held_by_clients

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
