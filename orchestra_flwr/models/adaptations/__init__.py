"""Adaptations: which part of a network is trained, one class a file; the rest is frozen.

A frozen tensor has the role `FROZEN`: clients never change it, and never send it. Methods know
nothing of adaptations, which see only their backbones; heads are always trained.
"""

from abc import ABC, abstractmethod

from torch import nn

from orchestra_flwr.config import ConfigError, Plugin
from orchestra_flwr.models.backbones import Backbone
from orchestra_flwr.models.batch_norm import statistics_of


class Adaptation(Plugin, ABC):
    """Which tensors of a backbone are trained."""

    def prepare(self, backbone: Backbone) -> None:
        """Adds tensors to train beside the network's own weights, in place; none by default.

        Called once, when the weights that the run begins with are in place. torch's global
        generator is in the same state for all backbones of a learner.

        Raises:
            ConfigError: an option does not fit the network; names the key.
        """

    def rests(self, name: str, round_: int) -> bool:
        """Whether a parameter that is trained otherwise stays as it is in a round; no by default.

        Args:
            name: its full name in the learner, in the backbone that clients train.
            round_: from 1.
        """
        return False

    def merge(self, backbone: Backbone) -> None:
        """Gives a network the structure it had before :meth:`prepare`, with the same features."""

    @abstractmethod
    def trained(self, backbone: Backbone) -> set[str]:
        """Names of a backbone's parameters and buffers that training changes.

        Raises:
            ConfigError: the network has none of the tensors to train, or an option does not fit
                it; names the key.
        """

    def freeze(self, backbone: Backbone) -> set[str]:
        """Freezes what is not trained: it gets no gradients, and BatchNorm keeps its statistics.

        Returns:
            Names of the frozen tensors of the backbone's state.

        Raises:
            ConfigError: as :meth:`trained`.
        """
        state = backbone.state_dict(keep_vars=True)
        trained = self.trained(backbone)
        unknown = [None] if trained is None else sorted({*trained} - state.keys())
        if unknown:
            raise ConfigError(
                f"adaptation: {type(self).__name__}.trained must name parameters and buffers of "
                f"the backbone, and named {unknown[0]!r}"
            )
        frozen = state.keys() - trained
        for name in frozen:
            if isinstance(tensor := state[name], nn.Parameter):
                tensor.requires_grad_(False)
        backbone.freeze_norms({path for path, names in statistics_of(backbone) if names <= frozen})
        return frozen
