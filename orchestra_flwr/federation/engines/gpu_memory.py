"""How much of a GPU a client needs: measured by training one batch in a process of its own.

It has its own because a CUDA context takes hundreds of megabytes, which the server's process would
keep, and because that context is part of what a client needs. Ray and Flower do not check the
share: if it is too small, clients run out of memory.
"""

import math
import os
import subprocess
import sys
from dataclasses import replace
from functools import lru_cache

import torch

from orchestra_flwr.commands.own_process import own_process
from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.data.batches import batch_sizes
from orchestra_flwr.federation.engines.trial_step import train_a_batch
from orchestra_flwr.federation.population import load_population
from orchestra_flwr.training import resolve_device
from orchestra_flwr.training.views_ahead import images_at_once

RESERVE = 1.15  # measurements vary: by cuDNN's choice of algorithms, by fragmentation
STEP = 0.01  # shares are rounded up to it: Ray counts in steps of 0.0001


def share_of(needed: int, total: int) -> float:
    """The fraction of a GPU that holds a client, rounded up, with a reserve.

    Args:
        needed: bytes that a client's process takes at its peak.
        total: bytes of the GPU.

    Raises:
        ConfigError: the client does not fit even alone.
    """
    if needed > total:
        raise ConfigError(
            f"device=cuda: a client needs {needed / 1e9:.1f} GB, the GPU has {total / 1e9:.1f} GB; "
            "a smaller training.batch_size or model.width, or device=cpu may help"
        )
    return min(1.0, math.ceil(needed * RESERVE / total / STEP) * STEP)


@lru_cache(maxsize=1)
def measured_share(config_json: str) -> float:
    """Measures :func:`share_of` for a client of this configuration, on the first GPU.

    Raises:
        ConfigError: the client does not fit, or its process fails.
    """
    done = subprocess.run(
        own_process("orchestra_flwr.federation.engines.gpu_memory:main"),
        input=config_json, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        raise ConfigError(f"engine.gpus_per_client: cannot be measured here, give it: {last}")
    needed, total = map(int, done.stdout.split()[-2:])
    return share_of(needed, total)


def train_largest(config: Config) -> set[int]:
    """Trains one epoch with the largest batch, and one with the most views made at once.

    On the run's device, which also holds all images, as in every worker.

    Returns:
        The number of images of each.
    """
    population = load_population(config)
    training, data = config.training, config.data
    counts = [len(part) for part in population.parts.values()]
    sizes = (batch_sizes(n, training.batch_size, drop_last=training.drop_last) for n in counts)
    at_once = images_at_once(1, data.channels, data.view_size)  # methods with more views: fewer
    trained = {max(map(max, sizes)), min(max(counts), at_once)}
    everything = population.dataset.train.to(resolve_device(config.device))
    dataset = replace(population.dataset, train=everything)
    for images in sorted(trained):
        train_a_batch(config, replace(population, dataset=dataset), images)
    return trained


def main() -> None:
    """Prints how many bytes of the GPU training took, and how many the GPU has."""
    config = Config.from_json(sys.stdin.read())
    free_at_first = _free_bytes()
    train_largest(config)
    # The driver counts context, libraries, and blocks that torch's allocator keeps after a peak.
    free, total = torch.cuda.mem_get_info()
    print(free_at_first - free, total)


def _free_bytes() -> int:
    """Free bytes of the first visible GPU, before this process has a context on it."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    query = ["nvidia-smi", f"--id={gpu}", "--query-gpu=memory.free"]
    query.append("--format=csv,noheader,nounits")  # in MiB
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout) << 20
