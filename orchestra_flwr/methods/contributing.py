"""Methods whose clients send a contribution beside their state, and checks of its privacy."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from orchestra_flwr.config import Config
from orchestra_flwr.methods.batch import Batch
from orchestra_flwr.privacy.release import Contribution, Release
from orchestra_flwr.seeding import ClientSeed


class Contributes(ABC):
    """Clients contribute at the end of a round; the server makes its state of all contributions."""

    @classmethod
    @abstractmethod
    def release(cls, config: Config) -> Release | None:
        """What clients send, known before anything is built; None: nothing."""

    @abstractmethod
    def end_round(self, images: Tensor, seed: ClientSeed) -> Contribution:
        """What the client contributes after its last step.

        Args:
            images: (n, C, H, W) uint8, all of the client's.
            seed: the client's randomness in this round.
        """

    @abstractmethod
    def update_server_state(
        self, contributions: Mapping[str, Tensor], generator: torch.Generator
    ) -> Mapping[str, float]:
        """Makes the server's state from the contributions of all clients, stacked by rows.

        Not called in a round in which clients could contribute and none did.

        Returns:
            Measures to record beside those of the clients.
        """

    def observe(self, batch: Batch) -> None:  # noqa: B027 (optional)
        """Takes in a batch of round 0, in which nothing is trained (`Release.first_round`)."""

    @classmethod
    def weight(cls, images: int, contributions: Mapping[str, Tensor]) -> float:
        """A client's weight in the mean with `federation.weighting=samples`, greater than 0."""
        return images


def release_of(config: Config) -> Release | None:
    """What clients of a run send beside their state; None: nothing.

    Raises:
        ConfigError: the method, of a user's package, returns something else.
    """
    plugin = config.method.plugin
    release = plugin.release(config) if issubclass(plugin, Contributes) else None
    fits = isinstance(release, Release | None)
    config.method.check_returned("release", release, fits, "a Release or None")
    return release


def weight_of(config: Config, images: int, contributions: Mapping[str, Tensor]) -> float:
    """A client's weight, by the method (:meth:`Contributes.weight`) or else its images."""
    plugin = config.method.plugin
    contributes = issubclass(plugin, Contributes)
    return plugin.weight(images, contributions) if contributes else images


def check_release(config: Config) -> None:
    """Refuses privacy that the release does not offer, and noise that the release would undo.

    Raises:
        ValueError: names the key, its value and what is allowed.
    """
    method, privacy, release = f"method={config.method.name}", config.privacy, release_of(config)
    is_private = release is not None and release.is_private
    remedy = release.made_private_by if release else ""
    for name in ("epsilon", "total_epsilon", "dimensions"):
        value = getattr(privacy, name)
        if value is not None and not is_private:
            nothing = f"{method} makes no differentially private release"
            raise ValueError(
                f"privacy.{name}={value:g}: {f'needs {remedy}' if remedy else nothing}"
            )
    if privacy.noise_multiplier > 0 and release is not None and not is_private:
        hint = f" ({remedy} adds noise)" if remedy else ""
        raise ValueError(
            f"privacy.noise_multiplier={privacy.noise_multiplier:g}: must be 0 with {method}, "
            f"whose clients send {release.label} without noise: the next rounds' updates depend "
            f"on them{hint}"
        )
    for key in ("unsupervised", "clients"):
        if is_private and getattr(config.evaluation, key):
            raise ValueError(
                f"evaluation.{key}=true: clients' scores are not differentially private, "
                "must be false with private releases (privacy.epsilon)"
            )


def unread_without_release(config: Config) -> dict[str, str]:
    """Keys of `privacy` that nothing reads in a run, each with the reason."""
    release = release_of(config)
    unread = {}
    if release is None or release.min_images is None:
        unread["privacy.k_min"] = f"by method={config.method.name}"
    is_private = release is not None and release.is_private
    if not is_private and config.privacy.noise_multiplier == 0:
        unread["privacy.delta"] = "without privacy.noise_multiplier or privacy.epsilon"
    return unread
