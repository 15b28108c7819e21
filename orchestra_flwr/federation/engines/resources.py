"""What a run on Ray may use: this machine's cores and GPUs, or a cluster's."""

import math
import os
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.federation.engines.gpu_memory import measured_share
from orchestra_flwr.flower.ray_start import load_ray
from orchestra_flwr.training import cores_for_clients, resolve_device


@dataclass(frozen=True)
class Node:
    """One machine: its CPU cores and its GPUs, as Ray counts them."""

    cpus: float
    gpus: float


def available_nodes(config: Config) -> list[Node]:
    """The machines on which clients are trained; joins the cluster of `engine.address`.

    Raises:
        ConfigError: the cluster cannot be joined, or this machine lacks the GPU that is asked for.
    """
    address, workers = config.engine.settings.address, config.engine.settings.workers
    if address is not None:
        return _cluster_nodes(address)
    threads = config.training.threads
    cores = workers * threads if workers else cores_for_clients(threads)
    on_gpu = resolve_device(config.device).type == "cuda"
    return [Node(cores, torch.cuda.device_count() if on_gpu else 0)]


def against_one_gpu(config: Config) -> str | None:
    """Why Ray cannot keep to the GPU of `device=cuda:N`, whose number its workers do not know.

    Each of them sees only the GPU that it was given, as its first. None: there is nothing against.
    """
    number = config.device.partition(":")[2]
    several = config.engine.settings.address is None and torch.cuda.device_count() > 1
    if not number or (int(number) == 0 and not several):
        return None
    return (
        f"Ray spreads clients over all GPUs that it sees, whatever device={config.device} says; "
        "CUDA_VISIBLE_DEVICES shows it that one alone, with device=cuda"
    )


def worker_count(nodes: Iterable[Node], threads: int, share: float) -> int:
    """Clients that are trained at the same time.

    A share lies on one GPU: with shares of .4, two GPUs hold four clients. Flower would count five,
    and Ray would make the fifth one wait for ever.

    Args:
        threads: cores that a client takes.
        share: fraction of a GPU that a client takes; 0: none.
    """
    return sum(
        min(int(node.cpus / threads), _shares(node.gpus, share) if share else sys.maxsize)
        for node in nodes
    )


def _shares(gpus: float, share: float) -> int:
    return int(gpus) * int(1 / share) if share < 1 else int(gpus / share)


def gpu_share(config: Config, nodes: list[Node]) -> float:
    """Fraction of a GPU that each client takes.

    It is `engine.gpus_per_client`, else what a client's memory needs, but never less than an even
    share of the GPUs among as many clients as a machine has cores for.

    Raises:
        ConfigError: a share of GPUs that are not there, or a client that no GPU can hold.
    """
    share: float | None = config.engine.settings.gpus_per_client
    address: str | None = config.engine.settings.address
    gpus = [node for node in nodes if node.gpus and config.device != "cpu"]
    if share is not None:
        if share > 0 and not gpus:
            raise ConfigError(
                f"engine.gpus_per_client={share:g}: no GPU is used here, only 0 is allowed"
            )
        return share
    if not gpus:
        return 0.0
    workers = {node: max(1, int(node.cpus / config.training.threads)) for node in gpus}
    even = max(1 / math.ceil(count / node.gpus) for node, count in workers.items())
    # A cluster's GPUs are elsewhere: nothing can be measured there before the first client.
    return even if address else max(even, measured_share(config.to_json()))


def ray_backend(config: Config) -> dict[str, Any]:
    """Flower's backend configuration: one actor for each worker.

    Raises:
        ConfigError: resources that are not there; Flower would wait for them for ever.
    """
    nodes = available_nodes(config)
    threads, address = config.training.threads, config.engine.settings.address
    if address and config.device.startswith("cuda") and not any(node.gpus for node in nodes):
        raise ConfigError(
            f"device={config.device}: no machine of engine.address={address} has a GPU"
        )
    share = gpu_share(config, nodes)
    if not worker_count(nodes, threads, share):
        place = "this machine does not have"
        if address is not None:
            place = f"no machine of engine.address={address} has"
        raise ConfigError(
            f"training.threads={threads}: {place} that many cores and {share:g} of a GPU"
        )
    init_args: dict[str, Any] = {"log_to_driver": False}
    if address is None:
        init_args |= {"num_cpus": int(nodes[0].cpus), "include_dashboard": False}
    return {"client_resources": {"num_cpus": threads, "num_gpus": share}, "init_args": init_args}


def _check_port(address: str) -> None:
    """Checks that something listens there: Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or "/" in host:
        return  # auto, or the address of a Ray Client server
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise ConfigError(f"engine.address={address}: nothing answers there: {error}") from None


def _cluster_nodes(address: str) -> list[Node]:
    ray = load_ray()
    if not ray.is_initialized():
        _check_port(address)
        paths = os.pathsep.join(sys.path)  # as Flower does for a Ray that it starts itself
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                runtime_env={"env_vars": {"PYTHONPATH": paths}},
            )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"engine.address={address}: cannot join the cluster: {reason}"
            ) from None
    return [
        Node(node["Resources"].get("CPU", 0), node["Resources"].get("GPU", 0))
        for node in ray.nodes()
        if node["Alive"]
    ]
