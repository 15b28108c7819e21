"""A network of timm as timm itself reads it: a folder for `timm.create_model("local-dir:...")`."""

from pathlib import Path
from typing import Any

from orchestra_flwr.config import ConfigError
from orchestra_flwr.export.export_config import ExportConfig
from orchestra_flwr.files import replacing, write_json
from orchestra_flwr.models import Encoder, encoder_of
from orchestra_flwr.models.backbones.timm import creation_options
from orchestra_flwr.models.normalisation import mean_and_deviation
from orchestra_flwr.tensor_files import save_plain

WEIGHTS, SETTINGS = "model.safetensors", "config.json"  # timm's names
NETWORK = "model."  # prefix of the names of a backbone's tensors


def export_to_timm(config: ExportConfig) -> Path:
    """Writes `model.safetensors` and `config.json`, with adapters merged; returns their folder.

    Raises:
        ConfigError: no encoder, or its network is not timm's.
        OSError: a file cannot be written.
    """
    encoder = encoder_of(config)
    name = encoder.spec.model.name
    if name != "timm":
        raise ConfigError(f"format=timm: the encoder is model={name}, must be model=timm")
    state = encoder.backbone.state_dict().items()
    tensors = {n.removeprefix(NETWORK): t.cpu().contiguous() for n, t in state}
    folder = config.exported
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / WEIGHTS) as temporary:
        save_plain(temporary, tensors, {"format": "pt"})
    write_json(folder / SETTINGS, _settings(encoder))
    return folder


def _settings(encoder: Encoder) -> dict[str, Any]:
    """timm's description of a network without a classifier, and of its images."""
    spec, settings = encoder.spec, encoder.spec.model.settings
    network: Any = encoder.backbone.get_submodule("model")
    known: dict[str, Any] = network.pretrained_cfg
    mean, deviation = mean_and_deviation(spec.normalise, spec.channels)
    return {
        "architecture": settings.timm.partition(".")[0],
        "num_classes": 0,
        "num_features": encoder.dim,
        "model_args": {"num_classes": 0, **creation_options(settings, spec.channels)},
        "pretrained_cfg": {
            "input_size": [spec.channels, spec.image_size, spec.image_size],
            "fixed_input_size": False,
            "interpolation": "bicubic",
            "crop_pct": 1.0,
            "mean": mean,
            "std": deviation,
            "num_classes": 0,
            # Where a classifier goes, and where images come in.
            **{key: known[key] for key in ("classifier", "first_conv") if key in known},
        },
    }
