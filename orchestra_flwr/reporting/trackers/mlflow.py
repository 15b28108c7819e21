"""MLflow: a run on a tracking server or in a file."""

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from orchestra_flwr.console.text import flat
from orchestra_flwr.reporting.trackers import TrackedRun, Tracker

EXPERIMENT = "orchestra_flwr"  # unless MLFLOW_EXPERIMENT_NAME names another
RUN_TAG = "orchestra_flwr.run"
MAX_PARAMETERS = 100  # in one message
NOT_IN_A_NAME = re.compile(r"[^\w/.: -]")  # a client can have any name, a metric of MLflow cannot


class MLflow(Tracker):
    """A run of an experiment.

    MLflow's own settings decide where: MLFLOW_TRACKING_URI, else `mlflow.db` and `mlruns` in the
    working folder. MLflow chooses the ids of runs, so a resumed run is found by a tag.
    """

    library = "mlflow"

    def __init__(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric = Metric
        self._client = MlflowClient()
        experiment = self._experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT))
        earlier = self._client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{run.id}'")
        if earlier:  # parameters cannot be written twice
            self._id = earlier[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        new = self._client.create_run(experiment, run_name=run.name, tags={RUN_TAG: run.id})
        self._id = new.info.run_id
        parameters = [Param(key, str(value)) for key, value in flat(run.configuration).items()]
        for start in range(0, len(parameters), MAX_PARAMETERS):
            self._client.log_batch(self._id, params=parameters[start : start + MAX_PARAMETERS])

    def numbers(self, round: int, numbers: Mapping[str, float]) -> None:
        """One message for all numbers."""
        now = int(1000 * time.time())
        metrics = [
            self._metric(NOT_IN_A_NAME.sub("_", path), value, now, round)
            for path, value in numbers.items()
        ]
        self._client.log_batch(self._id, metrics=metrics)

    def picture(self, file: Path, round: int) -> None:
        """Writes the file; a later one of the same name replaces it."""
        self._client.log_artifact(self._id, str(file))

    def close(self, completed: bool) -> None:
        """Ends the run, as finished or as failed."""
        self._client.set_terminated(self._id, "FINISHED" if completed else "FAILED")

    def _experiment(self, name: str) -> str:
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            return str(self._client.create_experiment(name))
        return str(experiment.experiment_id)
