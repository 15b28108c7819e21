"""The last blocks of the network are trained."""

from pydantic import Field

from orchestra_flwr.config import ConfigError, Section
from orchestra_flwr.models.adaptations import Adaptation
from orchestra_flwr.models.backbones import Backbone


class Blocks(Adaptation):
    """The last blocks, as the network itself groups its layers, and what follows them.

    Yosinski et al., "How transferable are features in deep neural networks?", NeurIPS 2014 (arXiv
    1411.1792): early layers are general, late ones belong to the task.
    """

    class Settings(Section):
        last: int = Field(1, ge=1)  # blocks that are trained, with the final norm

    settings: Settings

    def trained(self, backbone: Backbone) -> set[str]:
        """The tensors of the last blocks.

        Raises:
            ConfigError: the network has no more blocks than that.
        """
        blocks, last = backbone.layer_groups(), self.settings.last
        if last >= len(blocks):
            raise ConfigError(
                f"adaptation.last={last}: must be below {len(blocks)}, the number of the network's "
                "blocks with its first layer (adaptation=full trains all)"
            )
        return {name for block in blocks[-last:] for name in block}
