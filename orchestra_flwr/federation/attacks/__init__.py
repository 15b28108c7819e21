"""Attacks: what hostile clients of a simulation do to the model, one class a file.

They show what an aggregation withstands (`experiment=poisoning`). Real clients have none of this.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from orchestra_flwr.config import Config, Plugin
from orchestra_flwr.seeding import numpy_generator


class Attack(Plugin):
    """What an attacker does to its images, and to what it sends; nothing, unless overridden."""

    @classmethod
    def check(cls, config: Config) -> None:
        """Refuses more attackers than there are clients."""
        count, clients = config.attack.clients, config.federation.clients
        if count > clients:
            raise ValueError(
                f"attack.clients={count}: must be at most federation.clients={clients}"
            )

    def poisoned(self, images: Tensor) -> Tensor:
        """The images that an attacker trains on instead of its own.

        Args:
            images: (n, C, S, S) uint8; not changed.
        """
        return images

    def sent(
        self, received: np.ndarray, trained: np.ndarray, generator: torch.Generator
    ) -> np.ndarray:
        """The state that an attacker sends.

        Args:
            received: (size,) float32 state that the round began with; it cannot be changed.
            trained: (size,) float32 state after the attacker's training; a copy.
            generator: the attacker's randomness in this round.

        Returns:
            (size,) float32; it may be one of the arguments. BatchNorm's statistics in it are not
            sent: those of the training are.
        """
        return trained


def times_update(times: float, received: np.ndarray, trained: np.ndarray) -> np.ndarray:
    """(size,) float32 received + times * (trained - received)."""
    state: np.ndarray = received + np.float32(times) * (trained - received)
    return state


def poisoned_images(config: Config, attack: Attack, images: Tensor) -> Tensor:
    """:meth:`Attack.poisoned` of the configuration's attack.

    Raises:
        ConfigError: it returns something else than such images.
    """
    made = attack.poisoned(images)
    fits = isinstance(made, Tensor) and (made.shape, made.dtype) == (images.shape, torch.uint8)
    config.attack.check_returned("poisoned", made, fits, f"a Tensor, uint8 {tuple(images.shape)}")
    return made


def attacked_state(
    config: Config,
    attack: Attack,
    received: np.ndarray,
    trained: np.ndarray,
    generator: torch.Generator,
) -> np.ndarray:
    """:meth:`Attack.sent` of the configuration's attack, in memory of its own.

    Raises:
        ConfigError: it returns something else than such a state.
    """
    before = received.view()
    before.flags.writeable = False
    sent = attack.sent(before, trained.copy(), generator)
    fits = isinstance(sent, np.ndarray) and sent.shape == trained.shape
    fits = fits and sent.dtype == np.float32
    config.attack.check_returned("sent", sent, fits, f"a ndarray, float32 {trained.shape}")
    return sent if sent.flags.writeable else sent.copy()  # what was received, for one


def try_attack(config: Config, state: np.ndarray) -> None:
    """Refuses an attack that of a few images, and of a state, does not make such.

    Args:
        state: (size,) float32, of the run's model: an attack may know its size.

    Raises:
        ConfigError: as :func:`poisoned_images` and :func:`attacked_state`, or it raises an error.
    """
    shape = 4, config.data.channels, config.data.image_size, config.data.image_size
    with config.attack.tried():
        attack: Attack = config.attack.build()
        poisoned_images(config, attack, torch.zeros(shape, dtype=torch.uint8))
        attacked_state(config, attack, state, state + 1, torch.Generator().manual_seed(0))


def attackers(config: Config, clients: Sequence[str]) -> frozenset[str]:
    """The clients that attack, drawn from the seed.

    Args:
        config: of the run.
        clients: all of them, in their order.
    """
    if config.attack.name == "none":
        return frozenset()
    generator = numpy_generator(config.seed, "attackers")
    chosen = generator.choice(len(clients), config.attack.clients, replace=False)
    return frozenset(clients[i] for i in chosen)
