"""The federated client: shared and server state in, trained state and contributions out."""

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import numpy as np
from flwr.client import NumPyClient
from torch import Tensor

from orchestra_flwr.config import Config
from orchestra_flwr.data import count_distinct
from orchestra_flwr.evaluation import OwnClasses
from orchestra_flwr.federation.attacks import Attack, attacked_state
from orchestra_flwr.federation.client.scoring import Scoring
from orchestra_flwr.federation.client.state_folder import ClientStateFolder
from orchestra_flwr.federation.exchanges import Exchange, Offer
from orchestra_flwr.federation.exchanges.asynchronous import Asynchronous
from orchestra_flwr.federation.messages.fields import SMALLEST_GROUP, with_prefix
from orchestra_flwr.federation.messages.frozen_weights import (
    FrozenStore,
    WeightsMissingError,
    digest_of,
)
from orchestra_flwr.federation.messages.schema import Schemas, received_state, unpack_state
from orchestra_flwr.merging import (
    ClientState,
    Merging,
    has_local_state,
    keeps_state,
    kept_state,
    measured,
)
from orchestra_flwr.methods import KeepsState, Received, Role, release_of
from orchestra_flwr.methods.labels import shown_labels
from orchestra_flwr.privacy.updates import clipped_state
from orchestra_flwr.process_memory import keep_freed_memory, return_freed_memory
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import (
    Learner,
    LocalResult,
    build_learner,
    is_beside_others,
    observe_round,
    torch_threads,
    train_round,
)

# Prefixes of state tensors that belong to the client, not to the learner.
EXCHANGE, OPTIMIZER = "exchange.", "optimizer."


@dataclass
class _RoundState:
    """What the client knows of the round that it is in."""

    seed: ClientSeed  # the client's randomness in this round
    # Of each model that was received, by the names in `Schemas.down`
    arrays: dict[str, dict[str, np.ndarray]]
    model: str  # the one that is trained
    contribute: bool  # whether the method may make something for the server
    index: int | None  # the client's number in the run; None: not known
    population: int | None  # how many clients have numbers so far; None: not known
    metrics: dict[str, Any] = field(default_factory=dict)  # what is measured


@dataclass(eq=False, repr=False)  # without a repr: its images must not reach a log
class OrchestraClient(NumPyClient):
    """One client's local work on its own images; works with and without Flower's runtime.

    Raises:
        ValueError: there are fewer different images than `federation.min_images`.
    """

    config: Config
    name: str  # which client this is; its randomness follows from it
    images: Tensor  # (n, C, H, W) uint8 on the device to train on
    # (n,) int64 beside them, for methods that learn from labels; those that `labels.fraction` hides
    # are dropped here, before anything sees them.
    labels: Tensor | None = None
    _: KW_ONLY
    state_folder: ClientStateFolder | None = None  # for runs in which clients keep state
    own_classes: OwnClasses | None = None  # what simulations evaluate its own model on
    # (n,) classes of its images, to evaluate a head of its own on (`evaluation.personal_labels`),
    # UNLABELLED where there is none; None: the accuracy is not to leave the client.
    personal: Tensor | None = None
    frozen_store: FrozenStore | None = None  # where frozen weights, which nobody trains, are stored
    untrained: Learner | None = None  # on the images' device; copied if given, else built
    # Whether the noise of private releases is drawn afresh from the system, as it must be wherever
    # somebody else knows the run's seed; otherwise it follows from the seed.
    secret_noise: bool = False
    attack: Attack | None = None  # which changes what it sends; only a simulation's client has one

    def __post_init__(self) -> None:
        config, images, least = self.config, self.images, self.config.federation.min_images
        if (count := count_distinct(images, least)) < least:
            raise ValueError(
                f"client {self.name} has {count} different images, federation.min_images={least}"
            )
        if self.labels is not None:
            self.labels = shown_labels(config, self.labels, self.name)
        self.scoring = Scoring(config, self.name, images, self.own_classes, self.personal)
        self.learner = (
            copy.deepcopy(self.untrained)
            if self.untrained is not None
            else build_learner(config, images.shape[1]).to(images.device)
        )
        self._local_state_changed = False  # since the learner was built
        self._frozen = ""  # the digest of the frozen weights in the learner
        self.exchange: Exchange = config.exchange.build()
        self.schemas = Schemas.of(self.learner, config)
        release = release_of(config)
        # The names of `fit`'s arrays, in order: down (of each model), up after training only, up
        # after any round.
        self.receives = self.schemas.down
        self.returns = list(self.schemas.codec.form(self.schemas.reply))
        self.contributes = list(release.rows) if release else []

    def take_frozen(self, digest: str, values: np.ndarray | None) -> None:
        """Loads the frozen weights into the learner, unless they are there.

        Args:
            values: (size,) float32 that came with the message and are then stored; None: none came.

        Raises:
            WeightsMissingError: they are neither here nor in the message.
            ValueError: they do not match the digest.
            OSError: they cannot be stored.
        """
        if not self.schemas.frozen.size or digest == self._frozen:
            return
        weights = values
        if weights is None and self.frozen_store is not None:
            weights = self.frozen_store.load(digest)
        elif weights is not None and digest_of(weights) != digest:
            raise ValueError("the frozen weights are damaged: they have another digest")
        if weights is None:
            raise WeightsMissingError(
                f"client {self.name} does not have the frozen weights {digest[:16]}"
            )
        if weights.dtype != np.float32:
            raise ValueError(f"the frozen weights are {weights.dtype}, not float32")
        self.schemas.frozen.unpack(weights, self.learner.state(Role.FROZEN))
        self._frozen = digest
        # Only weights that this run uses are written: a server could fill the disk otherwise.
        if values is not None and self.frozen_store is not None:
            self.frozen_store.save(values)

    def fit(
        self, parameters: list[np.ndarray], config: dict[str, Any]
    ) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        """Trains for one round, or only observes in the first.

        Args:
            parameters: the flat arrays named by `receives`, for one model after the other.
            config: of a task `round` (int), `train` (bool; false in the first round of methods
                whose server state is made before training), and where they apply `models`,
                `contribute`, `index`, `population` and `stage`, as :class:`_RoundState` has them.

        Returns:
            The arrays named by `returns` (only after training: the shared state, moved by at most
            `privacy.clip`, or what changed of it; with `privacy.secure_aggregation` the state as
            it is, which must not be sent), followed by those named by `contributes`; the
            number of images; metrics: mean loss parts, steps, seconds, `model` (which one was
            trained) and the method's own.

        Raises:
            ValueError: arrays that do not fit the model, state to keep without a folder for it, or
                an update that is not finite.
            TrainingError: a loss that is not finite.
        """
        started = time.perf_counter()
        keep_freed_memory()
        train = bool(config["train"])
        with torch_threads(self.config.training.threads):
            work = self._begin(parameters, config)
            del parameters  # frees them where the caller has not kept them
            result = self._train(work) if train else self._observe(work)
        if not is_beside_others():  # all threads would wait, and allocate it again at once
            return_freed_memory()  # before the reply is packed, which takes two models' memory
        contributed = result.contribution.arrays
        arrays = [contributed[name].float().cpu().numpy() for name in self.contributes]
        if train:
            arrays = [*self._trained(work), *arrays]
        work.metrics |= {f"loss/{name}": value for name, value in result.losses.items()}
        work.metrics |= {f"measure/{name}": value for name, value in result.measures.items()}
        work.metrics |= {"steps": result.steps, "model": work.model}
        if result.contribution.smallest_group is not None:
            work.metrics[SMALLEST_GROUP] = result.contribution.smallest_group
        work.metrics["seconds"] = time.perf_counter() - started
        return arrays, len(self.images), work.metrics

    def evaluate(
        self, parameters: list[np.ndarray], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Scores the backbone that is kept, with the client's own state where it has some.

        Args:
            parameters: the flat arrays named by `receives`.
            config: of a task `round` (int).

        Returns:
            A loss, the number of images, and the scores, as :meth:`Scoring.scores`.

        Raises:
            ValueError: arrays that do not fit the model, or the own classes are not known.
        """
        round_ = int(config["round"])
        with torch_threads(self.config.training.threads):
            received = dict(zip(self.receives, parameters, strict=True))
            unpack_state(received, self.learner, self.schemas)
            if keeps_state(self.config, self.learner):
                self._recall_local(self._folder().before(round_ + 1))
            loss, scores = self.scoring.scores(self.learner, round_)
        return loss, len(self.images), scores

    def _begin(self, parameters: Sequence[np.ndarray], config: Mapping[str, Any]) -> _RoundState:
        """Takes in what was received: the first model is in the learner afterwards."""
        models = list(config.get("models") or ["model"])
        count = len(self.receives)
        if len(parameters) != count * len(models):
            raise ValueError(f"{len(parameters)} arrays for {len(models)} models of {count} each")
        parts = [parameters[i * count : (i + 1) * count] for i in range(len(models))]
        arrays = {
            model: dict(zip(self.receives, part, strict=True))
            for model, part in zip(models, parts, strict=True)
        }
        unpack_state(arrays[models[0]], self.learner, self.schemas)
        needed = config["train"] and (self._compares or self.learner.needs_received)
        if len(models) == 1 and not needed:
            arrays[models[0]] = {}  # frees it; an encoded model is kept, but is small
        round_, stage = int(config["round"]), int(config.get("stage", 0))
        return _RoundState(
            ClientSeed(self.config.seed, round_, self.name, self.secret_noise, stage),
            arrays,
            models[0],
            bool(config.get("contribute", True)),
            config.get("index"),
            config.get("population"),
        )

    def _observe(self, work: _RoundState) -> LocalResult:
        return observe_round(
            self.learner,
            self.images,
            self.config,
            work.seed,
            labels=self.labels,
            contribute=work.contribute,
            received=self._received(work, work.model),
        )

    def _train(self, work: _RoundState) -> LocalResult:
        merging: Merging = self.config.merging.build()
        folder = None
        if keeps_state(self.config, self.learner) or self.exchange.remembers:
            folder = self._folder()
        saved = folder.before(work.seed.round, work.seed.stage) if folder else None
        self._recall_local(saved)
        self._local_state_changed = True
        if len(work.arrays) > 1:
            self._choose(work, saved)
        received = self._received(work, work.model)
        if has_local_state(self.config, self.learner):  # not if only exchange or optimizer keep it
            if saved is None and isinstance(self.learner.method, KeepsState):
                self.learner.method.start_local_state()
            merging.merge(self.learner, saved)
        result = train_round(
            self.learner,
            self.images,
            self.config,
            work.seed,
            labels=self.labels,
            contribute=work.contribute,
            received=received,
            optimizer_state=with_prefix(saved.tensors, OPTIMIZER) or None if saved else None,
        )
        if folder is not None:
            state = self._state_to_keep(merging, result.optimizer_state)
            from_before = 2 if isinstance(self.exchange, Asynchronous) else 1
            folder.save(work.seed.round, state, work.seed.stage, from_before=from_before)
            result = replace(result, optimizer_state={})  # as large as the model: it is on disk now
        merged = measured(self.config, merging)
        work.metrics |= {f"merge/{name}": value for name, value in merged.items()}
        return result

    def _choose(self, work: _RoundState, saved: ClientState | None) -> None:
        """Lets the exchange choose a model, which is in the learner afterwards."""
        local = {name: t.clone() for name, t in self.learner.state(Role.LOCAL).items()}

        def load(model: str) -> Received:
            unpack_state(work.arrays[model], self.learner, self.schemas)
            for name, tensor in self.learner.state(Role.LOCAL).items():
                tensor.copy_(local[name])  # a loss may have moved the client's own target
            return self._received(work, model)

        remembered = with_prefix(saved.tensors, EXCHANGE) if saved else {}
        names, seed = list(work.arrays), work.seed
        offer = Offer(
            names, load, self.learner, self.images, self.labels, remembered, self.config, seed
        )
        work.model = self.exchange.choose(offer)
        load(work.model)
        work.arrays = {work.model: work.arrays[work.model]}  # the others go

    def _received(self, work: _RoundState, model: str) -> Received:
        arrays = work.arrays[model] if self.learner.needs_received else {}
        state = received_state(arrays, self.schemas) if arrays else None
        round_, images = work.seed.round, self.images
        return Received(self.name, work.index, round_, images, state, work.population)

    def _recall_local(self, saved: ClientState | None) -> None:
        """Restores the client's saved local state; if it has saved none, the initial one.

        A round that failed, or that is repeated, has changed the state in this object.
        """
        local = self.learner.state(Role.LOCAL)
        tensors = saved.tensors if saved is not None else None
        if tensors is None and self._local_state_changed and local:
            tensors = build_learner(self.config, self.images.shape[1]).state(Role.LOCAL)
        if tensors is not None:
            for name, tensor in local.items():
                tensor.copy_(tensors[name])
        self._local_state_changed = saved is not None

    def _state_to_keep(self, merging: Merging, optimizer: Mapping[str, Tensor]) -> ClientState:
        merged = kept_state(self.config, merging, self.learner)
        local = self.learner.state(Role.LOCAL)
        # Copies: merging may keep the same tensors, and a file must not hold one twice.
        saved = self.exchange.keep(self.learner)
        exchange = {EXCHANGE + name: tensor.clone() for name, tensor in saved.items()}
        steps = {OPTIMIZER + name: tensor for name, tensor in optimizer.items()}
        return ClientState({**local, **merged.tensors, **exchange, **steps}, merged.values)

    def _folder(self) -> ClientStateFolder:
        if self.state_folder is None:
            raise ValueError(
                f"client {self.name} keeps state from round to round in this run, and was started "
                "without a folder for it"
            )
        return self.state_folder

    @property
    def _compares(self) -> bool:
        """Whether the reply is made from both the trained and the received state."""
        clipped = self.config.privacy.clip is not None
        return self.schemas.sends_updates or clipped or self.attack is not None

    def _trained(self, work: _RoundState) -> list[np.ndarray]:
        """The arrays named by `returns`, made from the trained and perhaps the received state."""
        state = self.schemas.shared.pack(self.learner.state(Role.SHARED))
        before, clip = None, self.config.privacy.clip
        if self._compares:
            before = self.schemas.codec.decode(Role.SHARED.value, work.arrays[work.model])
            if clip is not None:
                state = clipped_state(before, state, clip)
        if self.attack is not None:
            assert before is not None
            generator = work.seed.generator("attack")
            sent = attacked_state(self.config, self.attack, before, state, generator)
            for span, _ in self.schemas.shared.statistics:  # or variances could be below 0
                sent[span] = state[span]
            state = sent
        if self.config.privacy.secure_aggregation:
            return [state]  # as it is: federation/client/secure_answers.py masks it
        arrays = self.schemas.pack_trained(state, before, work.seed.generator("wire"))
        return [arrays[name] for name in self.returns]
