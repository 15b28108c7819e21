"""What an exchange is: the server's named models, and a round's stages of tasks for clients.

A round is a sequence of stages. In a stage every client with a task is sent one or several models,
trains one of them and sends it back; then each model becomes the mean of what entered it. The next
stage starts from there. FedAvg is one model and one stage.
"""

from abc import ABC
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from orchestra_flwr.config import Config, Plugin
from orchestra_flwr.federation.exchanges.early_ends import check_early_ends
from orchestra_flwr.federation.secure_aggregation.excluded import check_secure_aggregation
from orchestra_flwr.methods import Received
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import Learner


@dataclass(frozen=True)
class Task:
    """What a client is asked for in a stage.

    Raises:
        ValueError: no model, or one twice.
    """

    client: str
    models: tuple[str, ...]  # that it is sent, at least one; it trains one of them

    def __post_init__(self) -> None:
        if not self.models or len(set(self.models)) < len(self.models):
            raise ValueError(f"client {self.client} must be sent different models: {self.models}")


@dataclass(frozen=True)
class Stage:
    """Tasks of clients that work at the same time.

    Raises:
        ValueError: a client has two tasks.
    """

    tasks: tuple[Task, ...]  # there may be none
    # Models that become copies of others before the stage, with server state and the moments of
    # their optimizers
    copies: Mapping[str, str] = field(default_factory=dict)
    # Models that, once all results are in, become these weighted sums of models
    mixing: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        clients = [task.client for task in self.tasks]
        if len(set(clients)) < len(clients):
            raise ValueError(f"a client has two tasks in a stage: {', '.join(sorted(clients))}")


@dataclass(frozen=True)
class Result:
    """A good result, as the server's exchange sees it."""

    client: str
    model: str  # that it trained
    state: np.ndarray  # (size,) float32 shared state after it; only to be read, not to be kept
    before: Callable[[], np.ndarray]  # makes the (size,) float32 state that it trained from
    # Where the values lie that gradients train; all others are statistics and averages
    trained: Sequence[slice]

    def update(self) -> np.ndarray:
        """(m,) float32: what training changed of the m values that gradients train."""
        before = self.before()
        parts = [self.state[span] - before[span] for span in self.trained]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)


@dataclass(frozen=True)
class Offer:
    """What a client chooses a model from."""

    names: Sequence[str]  # of the models that it was sent
    # Puts one of them into the learner; returns what a client that starts with it receives
    load: Callable[[str], Received]
    # What is going to be trained; it holds the first model, and the client's own local state where
    # there is any. A choice may change the models in it: that is undone.
    learner: Learner
    images: Tensor  # (n, C, H, W) uint8, all of the client's
    labels: Tensor | None  # (n,) int64 beside them, for methods that learn from labels
    # What :meth:`Exchange.keep` returned after the client's last training, or nothing
    kept: Mapping[str, Tensor]
    config: Config
    seed: ClientSeed  # the client's randomness in this round and stage


class Exchange(Plugin, ABC):
    """Who talks with whom. The server has one object, and so has every client in every round.

    Class attributes:
        Settings: own options under `exchange.` in the configuration.
        remembers: whether clients keep something from round to round (:meth:`keep`).
        deployable: whether real clients can take part, or only simulated ones.
        on_disk: whether the server's models wait in a file instead of in its memory.
        averages: whether the run's scores and encoder are those of the mean of the models in
            :meth:`evaluated`; each of these has scores and an encoder as well.
        private: whether `privacy.clip`, noise and private releases are allowed. Their accounting
            assumes one model and one stage, in which each client of the cohort has one task.
        one_average: whether all results of a round enter one model, as one average.
        synchronous: whether all results of a round are of clients that began in it.
    """

    remembers: bool = False  # may depend on the settings
    deployable: ClassVar[bool] = True
    on_disk: ClassVar[bool] = False
    averages: ClassVar[bool] = False
    private: ClassVar[bool] = False
    one_average: ClassVar[bool] = False
    synchronous: ClassVar[bool] = True

    @classmethod
    def check(cls, config: Config) -> None:
        """As :meth:`Plugin.check`: refuses privacy options that would have no valid accounting."""
        check_secure_aggregation(config)
        check_early_ends(config)
        if cls.private:
            return
        for name in ("clip", "noise_multiplier", "epsilon", "total_epsilon"):
            value = getattr(config.privacy, name)
            if value:
                raise ValueError(
                    f"privacy.{name}={value:g}: must not be given with "
                    f"exchange={config.exchange.name}, it is accounted for one model and one stage"
                )

    def models(self, clients: Sequence[str]) -> tuple[str, ...]:
        """Names of the server's models; :meth:`evaluated` says which are evaluated and saved.

        Args:
            clients: of a simulation, in their order; () where clients come and go.
        """
        return ("model",)

    def check_clients(self, clients: Collection[str], rounds: int) -> None:
        """Refuses files that options name, once a simulation's clients are known.

        Raises:
            ConfigError: one cannot be read, or does not fit these clients and rounds.
        """

    def seed_of(self, model: str, seed: int) -> int:
        """The seed of a model's first weights.

        Args:
            model: its name.
            seed: the run's, with which all models begin alike.
        """
        return seed

    def stages(self, round_: int, cohort: Sequence[str]) -> Iterator[Stage]:
        """The stages of a round; the next one is asked for when the last one has ended.

        Args:
            round_: from 0; in round 0, which only some methods have, nothing is trained.
            cohort: clients of the round, in their order.
        """
        yield Stage(tuple(Task(client, ("model",)) for client in cohort))

    def enters(self, task: Task, trained: str) -> Mapping[str, float]:
        """Which models a client's result enters, each with a positive share of its weight.

        Args:
            task: of the client.
            trained: name of the model that it trained, one of the task's. In round 0 nothing is
                trained, and this is called for each of the task's models.
        """
        return {trained: 1.0}

    def min_results(self) -> int:
        """Good results that a model needs in a stage; with fewer it stays as it is."""
        return 1

    def result(self, result: Result) -> None:
        """Called on the server with every good result, in the order of the tasks.

        Those that had to wait for the others (:class:`Plausibility`) come after them.
        """

    def evaluated(self) -> Mapping[str, float]:
        """The models that are evaluated and saved, with their weights in the run's scores.

        {}: the first model alone. With several, unless `averages`, the run's scores are the
        weighted means of theirs, and `encoder.safetensors` is that of the model with the largest
        weight, the first of equals.
        """
        return {}

    def model_of(self, client: str) -> str | None:
        """The model that a client scores without labels; None: the first one."""
        return None

    def metrics(self) -> dict[str, Any]:
        """What a round's record says about this exchange, when the round has ended."""
        return {}

    def state(self) -> dict[str, Any]:
        """What the server has to remember of this exchange, as JSON can hold it."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Takes back what :meth:`state` returned, when a run is resumed."""

    def choose(self, offer: Offer) -> str:
        """Called on a client that was sent several models: the name of the one to train."""
        return offer.names[0]

    def keep(self, learner: Learner) -> Mapping[str, Tensor]:
        """What a client keeps after its training for its next choice, where it `remembers`."""
        return {}


def client_order(name: str) -> tuple[int, str]:
    """Sorting key of clients: "2" comes before "10", and any names have one order."""
    return len(name), name
