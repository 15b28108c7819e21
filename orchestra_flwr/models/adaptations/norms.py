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
        norms = [(path, module) for path, module in backbone.named_modules() if is_norm(module)]
        if not any(True for _, norm in norms for _ in norm.parameters(recurse=False)):
            raise ConfigError(
                "adaptation=norms: the network has no normalisation layer with a scale"
            )
        own = backbone.state_dict()
        inside = {
            f"{path}.{name}"
            for path, norm in norms
            for tensors in (norm.named_parameters, norm.named_buffers)
            for name, _ in tensors(recurse=False)
        }
        return inside & own.keys()
