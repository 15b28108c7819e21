"""What secure aggregation costs a client and the server, beside the plain wires.

    python benchmarks/secure_sums.py [clients ...]

SimCLR's ResNet-18, and LoRA adapters of a ViT-S (rank 8, queries, keys and values, and the head),
with 10, 50 and 100 clients, `federation.wire=int8`. All clients of a sum are in this process, which
runs the whole protocol; seconds are processor time of one thread. With `lost` a tenth of the
clients send no vector. Bytes are those of messages up and down, without the model that is sent.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common import table, write

from orchestra_flwr.config import load_config
from orchestra_flwr.federation.messages.schema import Schema, Schemas
from orchestra_flwr.federation.secure_aggregation.sum_codec import Numbers, RingCodec, Start
from orchestra_flwr.privacy.secure_sums import Confirmations, SumClient, SumServer
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner

COUNTS = (10, 50, 100)
HEAD = (("projector.0", (2048, 384)), ("projector.1", (128, 2048)))


def schemas() -> dict[str, Schemas]:
    """Of what is trained in each model, by its name."""
    config = load_config(["data=cifar10", "method=simclr", "federation.wire=int8"])
    lora = [
        entry
        for block in range(12)
        for entry in ((f"{block}.qkv.a", (8, 384)), (f"{block}.qkv.b", (1152, 8)))
    ]
    return {
        "ResNet-18": Schemas.of(build_learner(config, 3), config),
        "ViT-S adapters": Schemas(Schema((*lora, *HEAD)), Schema(()), "int8"),
    }


class Meter:
    """Seconds of the processor, and bytes up and down, of one party."""

    def __init__(self) -> None:
        self.seconds, self.up, self.down = 0.0, 0, 0

    def __call__(self, work: Callable[..., Any], *arguments: Any) -> Any:
        started = time.process_time()
        result = work(*arguments)
        self.seconds += time.process_time() - started
        return result


def measure(model: Schemas, count: int, lost: int) -> dict[str, float]:
    """One sum of `count` clients, of whom the last `lost` send no vector."""
    codec, size = RingCodec(model), model.shared.size
    received = np.random.default_rng(0).normal(0, 0.05, size).astype(np.float32)
    start = Start(received, count)
    change = np.random.default_rng(1).normal(0, 0.001, size).astype(np.float32)
    server, at_server = SumServer("run", 1, codec.layout), Meter()
    names = [f"client-{i:03}" for i in range(count)]
    clients = {name: SumClient(name, server.occasion) for name in names}
    meters = {name: Meter() for name in names}

    def stage(who: list[str], asked: Callable[[str], Any], answer: str, take: str) -> None:
        for name in who:
            question = at_server(asked, name)
            reply = meters[name](getattr(clients[name], answer), *question)
            meters[name].up += len(json.dumps(reply))
            meters[name].down += len(json.dumps([part for part in question if part.__class__ in
                                                 (list, dict)]))  # fmt: skip
            at_server(getattr(server, take), name, reply)

    stage(names, lambda _: (), "advertise", "take_keys")
    roster = server.roster()
    stage(names, lambda _: (roster,), "share", "take_shares")
    stage(names, lambda name: tuple(server.boxes_for(name).values()), "hold", "take_holding")
    alive = server.alive
    for name in names[: count - lost]:
        meter = meters[name]
        numbers, seed = Numbers(1, 100, 0, {"loss/contrastive": 5.0}), ClientSeed(0, 1, name)
        vector = meter(codec.encode, received + change, start, numbers, seed)
        view = meter(clients[name].mask, alive, vector)
        meter.up += sum(part.nbytes for part in vector)
        meter.down += len(json.dumps(alive))
        at_server(server.take_vector, name, vector, view)
    survivors, none = server.survivors, Confirmations
    stage(survivors, lambda _: (survivors, none()), "confirm", "take_signature")
    signatures = server.signatures
    stage(survivors, lambda _: (signatures, server.views), "unmask", "take_unmasking")
    total = at_server(server.total)
    mean, _ = at_server(codec.decode, total, start, len(survivors), ["loss/contrastive"])
    # A vector's weights are not cut here, so that the mean is what all have sent.
    error = float(np.linalg.norm(mean - received - change) / np.linalg.norm(change))
    one = meters[names[0]]
    form = model.codec.form("update")
    return {
        "clients": count, "lost": lost, "values": size, "client_s": one.seconds,
        "server_s": at_server.seconds, "up_mb": one.up / 1e6, "down_mb": one.down / 1e6,
        "int8_up_mb": sum(dtype.itemsize * n for dtype, n in form.values()) / 1e6,
        "float32_up_mb": 4 * size / 1e6, "error_of_the_update": error,
    }  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    counts = [int(word) for word in sys.argv[1:]] or COUNTS
    rows = [
        {"model": name, **measure(model, count, lost)}
        for name, model in schemas().items()
        for count in counts
        for lost in (0, count // 10)
    ]
    head = ("model", "clients", "lost", "client s", "server s", "MB up", "MB down", "times int8 up",
            "error of the update")  # fmt: skip
    table(head, [
        (r["model"], r["clients"], r["lost"], f"{r['client_s']:.2f}", f"{r['server_s']:.2f}",
         f"{r['up_mb']:.2f}", f"{r['down_mb']:.2f}", f"{r['up_mb'] / r['int8_up_mb']:.2f}",
         f"{r['error_of_the_update']:.2%}")
        for r in rows
    ])  # fmt: skip
    write("secure_sums", {"sums": rows})


if __name__ == "__main__":
    main()
