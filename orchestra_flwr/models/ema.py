"""Target networks: exponential moving averages of what is trained."""

import torch
from torch import nn


@torch.no_grad()
def ema_update(target: nn.Module, online: nn.Module, decay: float) -> None:
    """target = decay * target + (1 - decay) * online, for parameters.

    Orchestra, section 4; BYOL (Grill et al., NeurIPS 2020), equation 1. Buffers do not change: the
    target's BatchNorm keeps statistics of its own features. Tensors that both networks share,
    because nobody trains them, stay as well.
    """
    pairs = zip(target.parameters(), online.parameters(), strict=True)
    apart = [(slow, fast) for slow, fast in pairs if slow is not fast]
    if apart:
        slows, fasts = zip(*apart, strict=True)
        torch._foreach_lerp_(slows, fasts, 1 - decay)
