"""FeatARC's clusters: several models on the server, each client trains the one that fits it.

Wang et al., "Does Learning from Decentralized Non-IID Unlabeled Data Benefit from Self
Supervision?", ICLR 2023 (arXiv 2210.10947), Algorithm 1. It starts as `start=random` does: models
have different first weights, and clients are dealt out in turn. No client moves from there, since
features of two such models have nothing in common. By default clients train one model for some
rounds and are then grouped by their updates, as in Sattler et al., "Clustered Federated Learning",
2020 (arXiv 1910.01991).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from orchestra_flwr.clustering.linkage import linkage_groups
from orchestra_flwr.clustering.sketch import sketch
from orchestra_flwr.config import Config, Section
from orchestra_flwr.data import epoch_batches
from orchestra_flwr.federation.exchanges import Exchange, Offer, Result, Stage, Task, client_order
from orchestra_flwr.methods import Role, release_of
from orchestra_flwr.models import check_statistics, extract_features
from orchestra_flwr.models.precision import passes_in
from orchestra_flwr.seeding import derive
from orchestra_flwr.training import Learner
from orchestra_flwr.training.step import BatchMaker

BACKBONE = "backbone."  # what the names of the backbone's tensors begin with
UPDATES = 1 << 25  # values of all clients' updates together, float16, until clients are grouped
CLIENTS = 100  # assumed while their number is not known


class Clusters(Exchange):
    """Each client is sent all models, trains one, and sends it back with its name.

    It chooses the model whose features of its own images are most like those of its own last model
    (`assign=alignment`), or that of the lowest loss. Ties go to the first. A model that nobody
    trained stays as it is.
    """

    class Settings(Section):
        clusters: int = Field(2, ge=1)
        assign: Literal["alignment", "loss", "fixed"] = "alignment"
        start: Literal["grouped", "random", "same"] = "grouped"
        warm_rounds: int = Field(5, ge=1)  # of one model, before clients are grouped
        min_members: int = Field(1, ge=1)  # fewest results that change a model

    settings: Settings

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._names = tuple(f"cluster-{number}" for number in range(settings.clusters))
        self._aligns = settings.assign == "alignment" and settings.clusters > 1
        self.remembers = self._aligns
        self._warm = settings.start == "grouped" and settings.clusters > 1
        self._sketches: dict[str, np.ndarray] = {}  # of each client's last update
        self._width = UPDATES // CLIENTS  # of a sketch; shorter updates are kept as they are
        self._assigned: dict[str, int] = {}
        self._trained: set[str] = set()  # clients that keep a model; once grouped, a cluster's
        self._moved = 0  # clients that changed their cluster in this round

    @classmethod
    def unread(cls, config: Config) -> dict[str, str]:
        """One model leaves no choice; warm rounds only come before clients are grouped."""
        settings: Clusters.Settings = config.exchange.settings
        if settings.clusters == 1:
            keys = ("assign", "start", "warm_rounds")
            return {f"exchange.{key}": "with exchange.clusters=1" for key in keys}
        unread = {"exchange.warm_rounds": f"with exchange.start={settings.start}"}
        return {} if settings.start == "grouped" else unread

    @classmethod
    def check(cls, config: Config) -> None:
        """Refuses too few clients, several first server states, and norms without statistics."""
        super().check(config)
        settings: Clusters.Settings = config.exchange.settings
        clients, needed = config.federation.clients, settings.clusters * settings.min_members
        if needed > clients:
            raise ValueError(
                f"exchange.clusters={settings.clusters}: with exchange.min_members="
                f"{settings.min_members} needs {needed} clients, {config.federation.clients_key}="
                f"{clients}"
            )
        if settings.min_members > (cohort := config.federation.cohort_size(clients)):
            raise ValueError(
                f"exchange.min_members={settings.min_members}: must be at most {cohort}, the "
                f"clients of a round with federation.participation="
                f"{config.federation.participation:g}; no model would ever change"
            )
        if settings.assign == "alignment" and settings.clusters > 1:
            check_statistics(config, "exchange.assign=alignment")
        release = release_of(config)
        if settings.start == "random" and release and release.first_round == 0:
            raise ValueError(
                f"exchange.start=random: method={config.method.name} makes {release.label} before "
                "training, with one model for all; must be grouped or same"
            )

    def models(self, clients: Sequence[str]) -> tuple[str, ...]:
        if clients:
            self._width = UPDATES // len(clients)
        return self._names

    def seed_of(self, model: str, seed: int) -> int:
        """With `start=random` every model begins with first weights of its own."""
        number = self._names.index(model)
        apart = self.settings.start == "random" and number > 0
        return derive(seed, "cluster", number) if apart else seed

    def stages(self, round_: int, cohort: Sequence[str]) -> Iterator[Stage]:
        """One stage: of the first model while clients are not grouped, then of all models."""
        self._moved = 0
        first, *others = self._names
        alone = tuple(Task(client, (first,)) for client in cohort)
        if round_ == 0:
            yield Stage(alone)
            yield Stage((), dict.fromkeys(others, first))
            return
        least = self.settings.clusters * self.settings.min_members
        grouped = self._warm and round_ > self.settings.warm_rounds and len(self._sketches) >= least
        if grouped:
            self._group()
        if self._warm:
            yield Stage(alone)
            return
        tasks = tuple(Task(client, self._sent(client, grouped)) for client in cohort)
        yield Stage(tasks, dict.fromkeys(others, first) if grouped else {})

    def _sent(self, client: str, grouped: bool) -> tuple[str, ...]:
        """The models that a client is sent; one if it has nothing to choose by."""
        settings = self.settings
        new = client not in self._trained and settings.start != "same"
        placed = new and (self._aligns or client in self._assigned)
        if settings.assign == "fixed" or placed or grouped:
            return (self._names[self._group_of(client)],)
        return self._names

    def _group_of(self, client: str) -> int:
        """A client's cluster; one that was never seen is given one."""
        if client not in self._assigned:
            number = len(self._assigned) % self.settings.clusters
            if self.settings.start == "grouped":
                members = list(self._assigned.values())
                number = min(range(self.settings.clusters), key=members.count)
            self._assigned[client] = number
        return self._assigned[client]

    def _group(self) -> None:
        """Groups clients by the cosines of their last updates.

        Cosines of real updates differ by some hundredths. They are exact where all updates have no
        more than `UPDATES` values (10 clients with 3 million); otherwise they are those of
        sketches, with a deviation of at most sqrt(2 x clients / `UPDATES`): .0024 for 100 clients.

        What clients keep is of the common model, of which all cluster models are copies: it would
        lead them to the one that has moved least. So each client begins with its group's model.
        """
        clients = list(self._sketches)
        rows = np.stack([self._sketches[client].astype(np.float64) for client in clients])
        settings = self.settings
        groups = linkage_groups(rows @ rows.T, settings.clusters, settings.min_members)
        self._assigned = dict(zip(clients, groups, strict=True))
        self._warm, self._sketches, self._trained = False, {}, set()

    def min_results(self) -> int:
        """`exchange.min_members`: a mean of fewer would be those members' own model."""
        return self.settings.min_members

    def result(self, result: Result) -> None:
        """Remembers who trained what; until clients are grouped, their updates."""
        self._trained.add(result.client)
        if self._warm:
            self._sketches[result.client] = sketch(result.update(), self._width)
            return
        number = self._names.index(result.model)
        before = self._assigned.get(result.client, number)
        self._moved += before != number
        self._assigned[result.client] = number

    def evaluated(self) -> Mapping[str, float]:
        """All models, weighted by their members; {} while there is one model for all."""
        if self._warm or not self._assigned:
            return {}
        members = list(self._assigned.values())
        return {name: float(members.count(n)) for n, name in enumerate(self._names)}

    def model_of(self, client: str) -> str | None:
        number = None if self._warm else self._assigned.get(client)
        return None if number is None else self._names[number]

    def metrics(self) -> dict[str, Any]:
        """Members of each cluster, and how many clients changed theirs in this round."""
        if self._warm:
            everybody = sorted(self._trained, key=client_order)
            return {"moved": 0, "members": {self._names[0]: everybody}}
        members: dict[str, list[str]] = {name: [] for name in self._names}
        for client in sorted(self._assigned, key=client_order):
            members[self._names[self._assigned[client]]].append(client)
        return {"moved": self._moved, "members": members}

    def state(self) -> dict[str, Any]:
        """What the next round's tasks follow from."""
        return {
            "warm": self._warm,
            "assigned": dict(self._assigned),
            "trained": sorted(self._trained, key=client_order),
            "sketches": dict(self._sketches),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Takes the members, and sketches that this version can compare."""
        self._warm, self._assigned = state["warm"], dict(state["assigned"])
        self._trained = set(state["trained"])
        # Sketches of version 0.2 are text, and too short: those clients are waited for again.
        sketches = state["sketches"].items()
        self._sketches = {name: array for name, array in sketches if isinstance(array, np.ndarray)}

    def choose(self, offer: Offer) -> str:
        """The model of the best alignment or the lowest loss; of equals the first."""
        if self.settings.assign == "loss":
            return min(offer.names, key=lambda name: _mean_loss(offer, name))
        if not offer.kept:
            return offer.names[0]
        state = offer.learner.state(Role.SHARED)
        for name, tensor in offer.kept.items():
            state[name].copy_(tensor)
        features = _features(offer)  # of the client's own last model
        return min(offer.names, key=lambda name: _distance(offer, name, features))

    def keep(self, learner: Learner) -> Mapping[str, Tensor]:
        """The shared part of the trained backbone; the rest is kept anyway."""
        if not self._aligns:
            return {}
        shared = learner.state(Role.SHARED)
        return {name: tensor for name, tensor in shared.items() if name.startswith(BACKBONE)}


def _features(offer: Offer) -> Tensor:
    """(n, dim) features of the client's images by the model in the learner."""
    backbone = offer.learner.method.get_submodule("backbone")
    by, batch_size = offer.config.data.normalise, offer.config.training.batch_size
    return extract_features(backbone, offer.images, batch_size, by=by)


def _distance(offer: Offer, name: str, features: Tensor) -> float:
    """Minus the mean cosine between features of a model and the client's own (A_ij, section 5)."""
    offer.load(name)
    return -float(F.cosine_similarity(_features(offer), features).double().mean())


@torch.no_grad()
def _mean_loss(offer: Offer, name: str) -> float:
    """The method's loss, without terms, of a model in one pass over the client's images."""
    config, method = offer.config, offer.learner.method
    received = offer.load(name)
    offer.learner.train()
    offer.learner.start_round(received, with_terms=False)
    # The same views for each model.
    batch_of = BatchMaker(method, offer.images, offer.labels, config, offer.seed)
    total = 0.0
    for rows in epoch_batches(
        len(offer.images), config.training.batch_size, offer.seed.generator("choose")
    ):
        batch = batch_of(rows.to(offer.images.device))
        with passes_in(config.training.precision, offer.images.device.type):
            losses = method.loss(batch).losses
        total += len(rows) * float(sum(losses.values()))
    return total / len(offer.images)
