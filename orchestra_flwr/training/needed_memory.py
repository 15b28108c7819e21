"""A check before training: does the model fit into this machine's memory?"""

import os

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.models.sizes_only import sizes_only
from orchestra_flwr.training.learner import build_learner

COPIES = 3  # the state, as it was received, and its gradients; the optimizer has more


def check_memory(config: Config, channels: int) -> None:
    """Refuses a model that this machine's memory cannot hold while it is trained.

    Raises:
        ConfigError: names the keys that decide the model's size, and both sizes.
    """
    numbers, size = _state_size(config, channels)
    needed = (COPIES + config.optimizer.plugin.moments) * size
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        hidden = config.model.projector_hidden
        heads = "" if hidden is None else f" and model.projector_hidden={hidden}"
        raise ConfigError(
            f"model.width={config.model.width}: with "
            f"model.projector_dim={config.model.projector_dim}{heads} the state has {numbers:,} "
            f"numbers, to train it takes {needed / 1e9:,.0f} GB, and this machine has "
            f"{memory / 1e9:,.1f} GB"
        )


def _state_size(config: Config, channels: int) -> tuple[int, int]:
    """Elements and bytes of the whole state; 0 if it cannot be built on meta tensors."""
    try:
        with sizes_only():
            state = build_learner(config, channels).state_dict(keep_vars=True)
    except (NotImplementedError, RuntimeError):  # it looks at the values of its own tensors
        return 0, 0
    tensors = {id(tensor): tensor for tensor in state.values()}.values()  # shared ones once
    return sum(t.numel() for t in tensors), sum(t.numel() * t.element_size() for t in tensors)
