"""Federated learning without a server: nodes train, then mix their models with their neighbours'.

Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", NeurIPS 2017
(arXiv 1705.09056), with whole rounds of local training between two mixes.

Metropolis weights: Xiao, Boyd and Kim, "Distributed Average Consensus with Least-Mean-Square
Deviation", Journal of Parallel and Distributed Computing, 2007.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from orchestra_flwr.config import Config, Section
from orchestra_flwr.federation.exchanges import Exchange, Stage, Task
from orchestra_flwr.files import folder_name
from orchestra_flwr.methods import release_of


class Gossip(Exchange):
    """Every client is a node with its own model; a round trains all, then mixes with neighbours.

    A simulation holds all nodes in one process. It evaluates each node's model and the mean of all
    models, which no node of a real federation would have. A node that fails in a round enters the
    mix with the model that it has.
    """

    class Settings(Section):
        mixing: Literal["metropolis", "uniform"] = "metropolis"
        # With the neighbours, after each round of training. Beyond, rounding errors grow without
        # bound.
        mixes: int = Field(1, ge=1, le=10**6)

    deployable: ClassVar[bool] = False
    on_disk: ClassVar[bool] = True
    averages: ClassVar[bool] = True

    settings: Settings

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._mixing: dict[str, dict[str, float]] = {}
        self._metrics: dict[str, float] = {}

    @classmethod
    @abstractmethod
    def graph(cls, settings: Any, count: int) -> np.ndarray:
        """(count, count) bool, symmetric: who is whose neighbour.

        Raises:
            ValueError: there is no such graph.
        """

    @classmethod
    def check(cls, config: Config) -> None:
        """As :meth:`Exchange.check`; nothing may need a server."""
        super().check(config)
        name, participation = config.exchange.name, config.federation.participation
        if release_of(config) is not None:
            raise ValueError(
                f"method={config.method.name}: must be one without server state with "
                f"exchange={name}, which has no server"
            )
        if config.server_optimizer.name != "mean":
            raise ValueError(
                f"server_optimizer={config.server_optimizer.name}: must be mean with "
                f"exchange={name}, which has no server"
            )
        if participation < 1:
            raise ValueError(
                f"federation.participation={participation:g}: must be 1 with exchange={name}, "
                "all nodes train in every round"
            )
        cls.graph(config.exchange.settings, config.federation.clients)

    def models(self, clients: Sequence[str]) -> tuple[str, ...]:
        """One model for each client."""
        names = tuple(map(_node, clients))
        graph = self.graph(self.settings, len(names))
        uniform = self.settings.mixing == "uniform"
        weights = uniform_weights(graph) if uniform else metropolis_weights(graph)
        mixed = np.linalg.matrix_power(weights, self.settings.mixes)
        self._metrics = {
            "second_eigenvalue": second_eigenvalue(mixed),
            "largest_factor": largest_factor(mixed),
        }
        self._mixing = {
            name: {other: float(w) for other, w in zip(names, row, strict=True) if w > 0}
            for name, row in zip(names, mixed, strict=True)
        }
        return names

    def stages(self, round_: int, cohort: Sequence[str]) -> Iterator[Stage]:
        """All train, then all mix."""
        yield Stage(tuple(Task(client, (_node(client),)) for client in cohort), mixing=self._mixing)

    def evaluated(self) -> Mapping[str, float]:
        """All nodes."""
        return dict.fromkeys(self._mixing, 1.0)

    def model_of(self, client: str) -> str | None:
        """Its own."""
        return _node(client)

    def metrics(self) -> dict[str, Any]:
        """Factors by which a round's mixes change distances to the mean: in the limit, at most."""
        return self._metrics


def _node(client: str) -> str:
    return f"node-{folder_name(client)}"  # also a file name


def edges_to_graph(count: int, ones: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(count, count) bool, symmetric: ones[i] and others[i] are neighbours; no node is its own."""
    graph = np.zeros((count, count), bool)
    graph[ones, others] = graph[others, ones] = True
    np.fill_diagonal(graph, False)
    return graph


def metropolis_weights(graph: np.ndarray) -> np.ndarray:
    """(count, count) symmetric and doubly stochastic: mixing leaves the mean of all nodes as it is.

    An edge weighs 1 / (1 + the larger degree of its ends); a node itself weighs the rest.
    """
    degrees = graph.sum(1)
    weights = np.where(graph, 1 / (1 + np.maximum.outer(degrees, degrees)), 0.0)
    return weights + np.diag(1 - weights.sum(1))


def uniform_weights(graph: np.ndarray) -> np.ndarray:
    """(count, count) row-stochastic: each node takes the mean of itself and its neighbours.

    Not doubly stochastic where degrees differ: nodes with many neighbours count more in the end.
    """
    closed = graph + np.eye(len(graph))
    result: np.ndarray = closed / closed.sum(1, keepdims=True)
    return result


def second_eigenvalue(weights: np.ndarray) -> float:
    """The second largest absolute eigenvalue: the factor by which mixes finally shrink differences.

    A single mix with asymmetric weights may shrink them less: :func:`largest_factor`.
    """
    sizes = np.sort(np.abs(np.linalg.eigvals(weights)))
    return float(sizes[-2]) if len(sizes) > 1 else 0.0


def largest_factor(weights: np.ndarray) -> float:
    """The largest factor by which a mix can change the nodes' distance from their mean.

    The spectral norm of (1 - J) W (1 - J), J = 1/count everywhere. It is the second eigenvalue
    where the weights are symmetric; otherwise it is larger and may exceed 1.
    """
    centring = np.eye(len(weights)) - 1 / len(weights)
    return float(np.linalg.norm(centring @ weights @ centring, 2))
