"""The paper's experiments as data, the sweep that runs them, and the report of many runs.

- `planning`: what is run.
- `sweep`: runs what is missing.
- `results`: what the runs gave, beside the paper.
- `report`: HTML and Markdown of it.
"""

from orchestra_flwr.experiments.planning import (
    SCALES,
    Experiment,
    Measure,
    Plan,
    Presentation,
    Row,
    Scale,
    classes_held_by_clients,
    experiment_names,
    load_experiment,
    load_scale,
    make_plan,
    read_plans,
    run_name,
    scaled_local_epochs,
    scaled_lr,
)

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
