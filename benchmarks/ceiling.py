"""How fast a step could be at best: its operations, and how many this machine does a second."""

import time
from collections.abc import Callable

import torch
from published import PublishedClient
from torch.utils.flop_counter import FlopCounterMode

from orchestra_flwr.models.convolution import ONEDNN


def step_flops(published: PublishedClient) -> int:
    """Operations of the published step's convolutions and products, less its pass for nothing."""
    batch, model = published.batch(), published.model
    with FlopCounterMode(display=False) as whole:
        published.train_on(batch)
    with FlopCounterMode(display=False) as dead, torch.no_grad():
        model.projector(model.backbone(batch[0]))
    return int(whole.get_total_flops() - dead.get_total_flops())


def fastest_product(dtype: torch.dtype, device: torch.device) -> float:
    """Operations a second in a product of large square matrices, at its best."""
    size = 1024 if device.type == "cpu" else 8192
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    products: list[Callable[[], object]] = [lambda: left @ right.T]
    if device.type == "cpu" and ONEDNN:  # which torch does not take in float32
        linear = torch.ops.mkldnn._linear_pointwise
        products.append(lambda: linear(left, right, None, "none", [], ""))
    seconds = []
    for product in products * 20:
        started = time.perf_counter()
        product()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return float(2 * size**3 / min(seconds))
