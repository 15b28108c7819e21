"""Where networks and images are: the device of a name."""

import torch

from orchestra_flwr.config import ConfigError


def resolve_device(name: str | torch.device) -> torch.device:
    """The device that `device=` names; auto takes a GPU where one is visible.

    Raises:
        ConfigError: torch knows no such name, or the GPU does not exist.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.device_count() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(
            f"device={name}: must be auto, cpu, cuda or cuda:N, such as cuda:0"
        ) from None
    if device.type == "cuda" and (device.index or 0) >= (visible := torch.cuda.device_count()):
        raise ConfigError(f"device={name}: {visible} GPUs are visible here (device=auto or cpu)")
    return device
