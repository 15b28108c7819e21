"""A server's status that a test drives by hand, with the records of its rounds."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from orchestra_flwr.config import load
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.deployment.watch.federation_status import FederationStatus
from orchestra_flwr.deployment.watch.figures import figures
from orchestra_flwr.reporting import RunFolder


@pytest.fixture(scope="session")
def server_config():
    return load(ServerConfig, ["federation.rounds=9", "federation.min_clients=2"])


class Run:
    """A run's folder, and the status of it."""

    def __init__(self, config, path, names):
        self.folder = RunFolder(path)
        self.names = names
        self.status = FederationStatus(config, self.folder, lambda: self.names, ())

    def record(self, number, clients=(), **more):
        """A round's record as the server writes it."""
        self.folder.append_metrics(
            {
                "round": number,
                "seconds": 2.0,
                "clients": {"cohort": 3, "ok": 2, "dropped": list(clients), "mean_seconds": 1.5},
                "loss": {"contrast": 1.5, "total": 1.5},
                "bytes_up": 100,
                "bytes_down": 300,
                **more,
            }
        )

    def figures(self):
        return by_name(self.status)


def by_name(status):
    """The figures of a status by name and label."""
    return {
        (name, *([of] if label else [])): value
        for name, label, _, values in figures(status.to_dict())
        for of, value in values.items()
    }


@pytest.fixture(name="by_name")
def _by_name():
    return by_name


@pytest.fixture
def run(server_config, tmp_path):
    return Run(server_config, tmp_path, ["a", "b", None])


@pytest.fixture
def everything(run):
    """A run of which everything is known that can be known."""
    release = {"smallest_group": 4, "clients": {"a": 4, "b": 5}, "server_state_kept": False}
    account = {"epsilon": 1.5, "delta": 1e-3, "releases": {"a": 2, "b": 2}}
    run.record(
        1,
        [{"client": "b", "reason": "no answer in time", "silent": True}],
        scores={"online": {"knn": 0.5, "linear": 0.6}},
        release=release,
        privacy={"updates": "not covered by differential privacy", "centroids": account},
        unsupervised={"score": 0.1},
    )
    run.status.round_started(2, 2, "training")
    day = SimpleNamespace(not_valid_after_utc=datetime.now(UTC) + timedelta(days=10.5))
    run.status._certificates = (SimpleNamespace(path=run.folder.path / "ca.crt", certificate=day),)
    return run
