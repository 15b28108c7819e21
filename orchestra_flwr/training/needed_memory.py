"""A check before training: does the model fit into this machine's memory?"""

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.machine_limits import usable_memory
from orchestra_flwr.models.state_size import state_size
from orchestra_flwr.training.learner import build_learner

# The state, what was received of it, and gradients or, of frozen weights, what is stored of them;
# for trained weights the optimizer adds its own.
COPIES = 3


class TooLargeError(ConfigError):
    """A model that this machine's memory cannot hold."""


def check_memory(config: Config, channels: int) -> None:
    """Refuses a model that this machine's memory cannot hold while it is trained.

    Raises:
        TooLargeError: names the keys that decide the model's size, and both sizes.
    """
    numbers, size, trained = state_size(lambda: build_learner(config, channels))
    needed = COPIES * size + config.optimizer.plugin.moments * trained
    memory = usable_memory()
    if needed > memory:
        hidden = config.model.projector_hidden
        heads = "" if hidden is None else f" and model.projector_hidden={hidden}"
        raise TooLargeError(
            f"model.width={config.model.width}: with "
            f"model.projector_dim={config.model.projector_dim}{heads} the state has {numbers:,} "
            f"numbers; training it takes {needed / 1e9:,.0f} GB, and this machine has "
            f"{memory / 1e9:,.1f} GB"
        )
