"""All of the network is trained."""

from orchestra_flwr.models.adaptations import Adaptation
from orchestra_flwr.models.backbones import Backbone


class Full(Adaptation):
    """Nothing is frozen."""

    def trained(self, backbone: Backbone) -> set[str]:
        return {*backbone.state_dict()}
