"""How settings follow the size of a federation (section C.4 of the paper)."""

import math

from orchestra_flwr.config import Config


def scaled_local_epochs(local_epochs: int, clients: int, reference_clients: int) -> int:
    """Local epochs in proportion to the number of clients, at least 1.

    With the same images on more clients a client has fewer, so the number of steps stays the same
    (Zhuang et al., 2021): L_new = L * K_new / K.

    Args:
        local_epochs: of a federation of `reference_clients`.
        reference_clients: number of clients for which `local_epochs` was chosen.
    """
    return max(1, round(local_epochs * clients / reference_clients))


def scaled_lr(lr: float, participation: float, reference_participation: float) -> float:
    """The learning rate with the square root of participation: lr * sqrt(R_new / R).

    This is the formula of section C.4, after Charles et al. (2021); the text there says
    "quadratically".

    Args:
        lr: the rate at `reference_participation`.
        participation: fraction of the clients that take part in a round.
        reference_participation: the fraction that `lr` was tuned for.
    """
    return lr * math.sqrt(participation / reference_participation)


def scaled_override(rule: str, config: Config, reference: Config) -> str:
    """The override that adapts `config` to its size, starting from `reference`, by a named rule."""
    if rule == "local_epochs_with_clients":
        epochs = scaled_local_epochs(
            reference.training.local_epochs,
            config.federation.clients,
            reference.federation.clients,
        )
        return f"training.local_epochs={epochs}"
    lr = scaled_lr(
        reference.training.lr, config.federation.participation, reference.federation.participation
    )
    return f"training.lr={lr:.6g}"
