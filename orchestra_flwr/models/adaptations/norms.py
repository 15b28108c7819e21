"""Normalisation layers alone are trained."""

from orchestra_flwr.config import ConfigError
from orchestra_flwr.models.adaptations import Adaptation
from orchestra_flwr.models.backbones import Backbone
from orchestra_flwr.models.norm_layers import is_norm


class Norms(Adaptation):
    """Scale and shift of every normalisation layer; statistics follow `model.batch_norm`.

    Frankle et al., "Training BatchNorm and Only BatchNorm", ICLR 2021 (arXiv 2003.00152); of
    transformers Zhao et al., "Tuning LayerNorm in Attention", ICLR 2024 (arXiv 2312.11420).
    """

    def trained(self, backbone: Backbone) -> set[str]:
        """All that belongs to a norm itself.

        Raises:
            ConfigError: no norm has a scale.
        """
        norms = {path: norm for path, norm in backbone.named_modules() if path and is_norm(norm)}
        if not any(True for norm in norms.values() for _ in norm.parameters(recurse=False)):
            raise ConfigError(
                "adaptation=norms: the network has no normalisation layer with a scale"
            )
        return {name for name in backbone.state_dict() if name.rpartition(".")[0] in norms}
