"""How settings follow the size of a federation (section C.4 of the paper)."""

import math

from orchestra_flwr.config import Config


def scaled_override(rule: str, config: Config, reference: Config) -> str:
    """The override that adapts `config` to its size, starting from `reference`, by a named rule.

    - `local_epochs_with_clients`: L_new = L * K_new / K, at least 1. With the same images on more
      clients a client has fewer, so the number of steps stays the same (Zhuang et al., 2021).
    - `lr_with_participation`: lr * sqrt(R_new / R), the formula of the paper, after Charles et al.
      (2021); its text says "quadratically".
    """
    now, before = config.federation, reference.federation
    if rule == "local_epochs_with_clients":
        epochs = round(reference.training.local_epochs * now.clients / before.clients)
        return f"training.local_epochs={max(1, epochs)}"
    lr = reference.training.lr * math.sqrt(now.participation / before.participation)
    return f"training.lr={lr:.6g}"
