"""A ResNet's weights under Detectron2's names, with the settings that go with them.

Detectron2 (https://github.com/facebookresearch/detectron2) names the convolutions of a ResNet
stem.conv1, res2.0.conv1 and so on; the norm of each is its child `norm`, and `FrozenBatchNorm2d`
has four tensors. Its own converter reads torchvision's ResNets only, and writes a pickle.
"""

import json
import re
from pathlib import Path

from orchestra_flwr.config import ConfigError
from orchestra_flwr.export.export_config import ExportConfig
from orchestra_flwr.files import replacing, write_atomically
from orchestra_flwr.models import Encoder, encoder_of
from orchestra_flwr.models.batch_norm import COUNTER, MEAN, VARIANCE
from orchestra_flwr.models.normalisation import mean_and_deviation
from orchestra_flwr.tensor_files import save_plain

WEIGHTS, SETTINGS = "detectron2.safetensors", "detectron2.yaml"
DEPTHS = {"resnet18": 18, "resnet34": 34, "resnet50": 50, "resnet101": 101, "resnet152": 152}
NORM = rf"(weight|bias|{MEAN}|{VARIANCE})"
# Names in model=resnet18, and in timm's ResNets, as in torchvision's; {0} is a stage or block.
OURS = {
    r"stem\.0\.weight": "stem.conv1.weight",
    rf"stem\.1\.{NORM}": "stem.conv1.norm.{0}",
    r"blocks\.(\d)\.conv(\d)\.weight": "{block}.conv{1}.weight",
    rf"blocks\.(\d)\.norm(\d)\.{NORM}": "{block}.conv{1}.norm.{2}",
    r"blocks\.(\d)\.shortcut\.0\.weight": "{block}.shortcut.weight",
    rf"blocks\.(\d)\.shortcut\.1\.{NORM}": "{block}.shortcut.norm.{1}",
}
TIMMS = {
    r"model\.conv1\.weight": "stem.conv1.weight",
    rf"model\.bn1\.{NORM}": "stem.conv1.norm.{0}",
    r"model\.layer(\d)\.(\d+)\.conv(\d)\.weight": "{stage}.{1}.conv{2}.weight",
    rf"model\.layer(\d)\.(\d+)\.bn(\d)\.{NORM}": "{stage}.{1}.conv{2}.norm.{3}",
    r"model\.layer(\d)\.(\d+)\.downsample\.0\.weight": "{stage}.{1}.shortcut.weight",
    rf"model\.layer(\d)\.(\d+)\.downsample\.1\.{NORM}": "{stage}.{1}.shortcut.norm.{2}",
}


def export_to_detectron2(config: ExportConfig) -> Path:
    """Writes `detectron2.safetensors` and `detectron2.yaml`; returns their folder.

    Raises:
        ConfigError: no encoder, or not one of Detectron2's ResNets with BatchNorm.
        OSError: a file cannot be written.
    """
    encoder = encoder_of(config)
    depth = _depth(encoder)
    state = {n: t for n, t in encoder.backbone.state_dict().items() if not n.endswith(COUNTER)}
    tensors = {detectron2_name(n): tensor.cpu().contiguous() for n, tensor in state.items()}
    folder = config.exported
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / WEIGHTS) as temporary:
        save_plain(temporary, tensors)
    write_atomically(folder / SETTINGS, _settings(encoder, depth).encode())
    return folder


def detectron2_name(name: str) -> str:
    """Detectron2's name for a tensor of a ResNet's backbone; counters have none.

    Raises:
        ValueError: the tensor has no place there.
    """
    for pattern, form in {**OURS, **TIMMS}.items():
        match = re.fullmatch(pattern, name)
        if match:
            parts = match.groups()
            number = int(parts[0]) if parts[0:1] and parts[0].isdigit() else 0
            # Ours has two blocks a stage, numbered through all stages.
            block = f"res{2 + number // 2}.{number % 2}"
            return form.format(*parts, block=block, stage=f"res{1 + number}")
    raise ValueError(f"Detectron2's ResNet has no place for {name}")


def _depth(encoder: Encoder) -> int:
    """The network's number of layers; refuses all but ResNets that Detectron2 has."""
    model = encoder.spec.model
    name = model.name
    if name == "timm":
        name = str(model.settings.timm).partition(".")[0]
    elif model.norm != "batch":
        raise ConfigError(
            f"format=detectron2: the encoder has model.norm={model.norm}, must be batch"
        )
    if name not in DEPTHS:
        raise ConfigError(
            f"format=detectron2: the encoder is {name}, must be model=resnet18, or model=timm with "
            f"model.timm one of {', '.join(DEPTHS)}"
        )
    return DEPTHS[name]


def _settings(encoder: Encoder, depth: int) -> str:
    """The part of a Detectron2 configuration that follows from the encoder."""
    spec = encoder.spec
    mean, deviation = mean_and_deviation(spec.normalise, spec.channels)
    width = spec.model.width if spec.model.name == "resnet18" else 64
    stem = next(iter(encoder.backbone.state_dict().values())).shape[-1]
    return "\n".join(
        [
            f"# Weights: {WEIGHTS}, of a backbone with a first layer of {stem} x {stem}.",
            "INPUT:",
            f'  FORMAT: "{"RGB" if spec.channels == 3 else "L"}"',
            "MODEL:",
            f"  PIXEL_MEAN: {json.dumps([round(255 * v, 4) for v in mean])}",
            f"  PIXEL_STD: {json.dumps([round(255 * v, 4) for v in deviation])}",
            "  RESNETS:",
            f"    DEPTH: {depth}",
            '    NORM: "FrozenBN"',
            f"    RES2_OUT_CHANNELS: {width if depth < 50 else 256}",
            f"    STEM_OUT_CHANNELS: {width}",
            "    STRIDE_IN_1X1: false",
            "",
        ]
    )
