"""Heads alone are trained."""

from orchestra_flwr.models.adaptations import Adaptation
from orchestra_flwr.models.backbones import Backbone


class Head(Adaptation):
    """The whole backbone is frozen: the method's projector and other heads learn on its features.

    The encoder that a run ends with is the one that it began with.
    """

    def trained(self, backbone: Backbone) -> set[str]:
        return set()
