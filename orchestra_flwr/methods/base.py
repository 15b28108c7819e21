"""What a method is: modules, a role for every tensor, views, a loss, and what the server makes.

Training, strategy and client know only this class. A new method is one file in this folder, or in
the folder `methods/` of a user's package, that defines a subclass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from orchestra_flwr.config import Config, Plugin, Section
from orchestra_flwr.data import Recipe
from orchestra_flwr.methods.release import Contribution, Release
from orchestra_flwr.methods.roles import Role
from orchestra_flwr.models import Backbone
from orchestra_flwr.seeding import ClientSeed


@dataclass(frozen=True)
class Batch:
    """One local step's input.

    Attributes:
        images: (B,) which of the client's images these are.
        views: one normalised (B, C, H, W) tensor for each of the method's recipes.
        rotations: for each view the (B,) quarter turns, 0 to 3; None if its recipe has none.
        generator: the only source of randomness in a loss, on the views' device.
        labels: (B,) classes of the images, UNLABELLED (-1) where none is known; None for methods
            that learn from no labels.
    """

    images: Tensor
    views: tuple[Tensor, ...]
    rotations: tuple[Tensor | None, ...]
    generator: torch.Generator
    labels: Tensor | None = None


@dataclass(frozen=True)
class Step:
    """What a loss comes to.

    Attributes:
        losses: named scalar parts; their sum is minimised.
        features: what terms may use, by the module that made it ("backbone", "projector",
            "predictor"): for each view that passed through it with gradient, (B, dim).
        measures: makes named scalars without gradient that are only recorded; called in a client's
            first step of a round alone, for no step should wait for them.
    """

    losses: Mapping[str, Tensor]
    features: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict)
    measures: Callable[[], Mapping[str, Tensor]] = dict


@dataclass(frozen=True)
class Received:
    """What a client knows when its round starts.

    Attributes:
        client: its name.
        index: its number among all clients of the run, which never changes; None: not known.
        population: how many clients of the run have numbers so far; None: not known.
        round: the round, from 0.
        images: (n, C, H, W) uint8, all of the client's.
        labels: (n,) their classes, as in :class:`Batch`; None for methods that learn from none.
        state: shared and server tensors by name as the server sent them, before any merging; None
            where nothing asked for them (`needs_received`).
    """

    client: str
    index: int | None
    round: int
    images: Tensor
    state: Mapping[str, Tensor] | None = None
    population: int | None = None
    labels: Tensor | None = None


@dataclass(frozen=True)
class Classes:
    """The classes that a method learns from.

    Attributes:
        count: how many there are.
        names: in the order of their labels; (): as the data set numbers them.
    """

    count: int
    names: tuple[str, ...] = ()


class Method(Plugin, nn.Module, ABC):
    """A self-supervised (or supervised) method that clients train together.

    A client that keeps state between rounds (`merging`) knows two children by their names: the
    trained `backbone`, and the `predictor` of methods that have one.

    Class attributes:
        Settings: the method's own options under `method.` in the configuration.
        learns_labels: whether it cannot do without labels.
        semi_supervised: whether it can learn from images of which only some have labels, as
            `labels.fraction` asks for.
        needs_received: whether :meth:`start_round` needs the state as received.
        reads_clustering: whether it reads the section `clustering`.
        has_projector: whether it reads what `model` says of a projector.
        stackable: whether steps of several clients can be taken as one. Its loss then draws
            nothing, and reads nothing that differs between clients but parameters, buffers and the
            batch.
        private_release: which key makes what clients release differentially private, as a half
            sentence such as " (clustering=private adds noise)"; "": none does.

    Attributes:
        settings: the options, checked.
        gradient_norm: L2 norm of all gradients of a step together, at most; None: not clipped.
    """

    learns_labels: ClassVar[bool] = False
    semi_supervised: ClassVar[bool] = False
    needs_received: ClassVar[bool] = False
    reads_clustering: ClassVar[bool] = False
    has_projector: ClassVar[bool] = True
    stackable: ClassVar[bool] = False
    private_release: ClassVar[str] = ""

    settings: Section
    gradient_norm: float | None = None

    @abstractmethod
    def __init__(self, config: Config, channels: int) -> None:
        super().__init__()
        self.settings = config.method.settings

    @classmethod
    def check(cls, config: Config) -> None:
        """As :meth:`Plugin.check`: here, that labels and privacy can be had as asked for."""
        fraction = config.labels.fraction
        if fraction is not None and not cls.semi_supervised:
            raise ValueError(
                f"labels.fraction={fraction:g}: must be null with method={config.method.name}, "
                "which cannot learn from images of which some have labels"
            )
        release = cls.release(config)
        private = release is not None and release.epsilon is not None
        for name in ("epsilon", "total_epsilon", "dimensions"):
            value = getattr(config.privacy, name)
            if value is not None and not private:
                raise ValueError(
                    f"privacy.{name}={value:g}: method={config.method.name} makes no "
                    "differentially private release"
                )
        noise = config.privacy.noise_multiplier
        if noise > 0 and release is not None and not private:
            raise ValueError(
                f"privacy.noise_multiplier={noise:g}: must be 0 with method={config.method.name}, "
                f"whose clients send {release.label} without noise: the next rounds' updates "
                f"follow from them{cls.private_release}"
            )
        for key in ("unsupervised", "clients"):
            if private and getattr(config.evaluation, key):
                raise ValueError(
                    f"evaluation.{key}=true: clients' scores are not differentially private, "
                    "must be false with private releases (privacy.epsilon)"
                )

    @classmethod
    def sees_labels(cls, config: Config) -> bool:
        """Whether its clients are given labels in this run; otherwise they never see one."""
        return cls.learns_labels or (cls.semi_supervised and config.labels.fraction is not None)

    @classmethod
    def unread(cls, config: Config) -> dict[str, str]:
        """As :meth:`Plugin.unread`: what it does not do with model, clustering and privacy."""
        release = cls.release(config)
        keys = [] if cls.reads_clustering else ["clustering"]
        if not cls.has_projector:
            keys += [f"model.{key}" for key in ("projector", "projector_hidden", "projector_dim")]
        if release is None or release.least_images is None:
            keys.append("privacy.k_min")
        found = dict.fromkeys(keys, f"by method={config.method.name}")
        private = release is not None and release.epsilon is not None
        if not private and config.privacy.noise_multiplier == 0:
            found["privacy.delta"] = "without privacy.noise_multiplier or privacy.epsilon"
        return found

    @classmethod
    def release(cls, config: Config) -> Release | None:
        """What its clients send beside their state; None: nothing."""
        return None

    @classmethod
    def classes(cls, config: Config) -> Classes | None:
        """The classes that it learns from; None: it needs none, or they are not known yet."""
        return None

    @classmethod
    def weight(cls, images: int, contributions: Mapping[str, Tensor]) -> float:
        """A client's weight in the mean with `federation.weighting=samples`, greater than 0.

        Args:
            images: of the client.
            contributions: what it contributed in this round, as :meth:`release` announces it.
        """
        return images

    @abstractmethod
    def role(self, name: str) -> Role:
        """The role of a tensor of the state by its full name; see :func:`roles.role_of`.

        Raises:
            ValueError: the name is not known.
        """

    @abstractmethod
    def recipes(self) -> Sequence[Recipe]:
        """The augmentation of each view of a batch, where `method.views` asks for no other."""

    @abstractmethod
    def loss(self, batch: Batch) -> Step:
        """The loss of one step, and features that terms may use."""

    def information(self, step: Step) -> Tensor | None:
        """A lower bound of the information that two views share given the client, in nats.

        A scalar without gradient; None: the method's loss is no such bound.

        Args:
            step: what :meth:`loss` returned.
        """
        return None

    @abstractmethod
    def backbones(self) -> dict[str, Backbone]:
        """The backbones worth evaluating, the one to keep first."""

    def classification_head(self) -> nn.Module | None:
        """What makes logits (B, K) of features (B, dim) of its first backbone; None: nothing does.

        It is evaluated as it is, beside the probes.
        """
        return None

    def remember(self) -> None:
        """Called once where clients keep state from round to round, before roles are asked for."""

    def start_local_state(self) -> None:
        """Makes local state from what was received; called before a client's first training."""

    def start_round(self, received: Received) -> None:
        """Called on the client before its first step of a round, after merging."""

    def observe(self, batch: Batch) -> None:
        """Takes in a batch of the first round, in which nothing is trained."""

    def end_round(self, images: Tensor, seed: ClientSeed) -> Contribution:
        """What the client contributes after its last step.

        Args:
            images: (n, C, H, W) uint8, all of the client's.
            seed: the client's randomness in this round.
        """
        return Contribution()

    def update_server_state(
        self, contributions: Mapping[str, Tensor], generator: torch.Generator
    ) -> Mapping[str, float]:
        """Makes the server's state from the contributions of all clients, stacked by rows.

        Not called in a round in which clients could contribute and none did.

        Returns:
            What is recorded of it beside the clients' measures.
        """
        return {}
