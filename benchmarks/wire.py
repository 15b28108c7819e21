"""Bytes and milliseconds of sending a model, for each `federation.wire`.

    python benchmarks/wire.py

ResNet-18 with Orchestra's heads, as `data=cifar10` has it. Bytes are those of real messages, as a
run counts them: down the shared state and the global centroids, up what was trained and the local
centroids. Milliseconds are one thread's processor time. What rounding costs is measured on a state
and an update that come from training: one client, one epoch on 160 digits, 10 steps.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from common import table, write
from flwr.app import RecordDict

from orchestra_flwr.config import load_config
from orchestra_flwr.data import load_dataset
from orchestra_flwr.federation.messages.codec import BLOCK, INT4_BLOCK, BlockCodec
from orchestra_flwr.federation.messages.fields import ARRAYS
from orchestra_flwr.federation.messages.schema import Schemas, pack_state
from orchestra_flwr.flower.arrays import payload_bytes, to_record
from orchestra_flwr.methods import Role, release_of
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner, train_round

MIB, REPEATS = 2**20, 7
PUBLISHED = 89.8  # MiB each way: both encoders, heads, feature memory and centroids in float32
BLOCKS = (256, 1024, BLOCK, 1 << 16)
INT4_BLOCKS = (INT4_BLOCK // 3, INT4_BLOCK, 4 * INT4_BLOCK)


def trained_on_digits() -> tuple[Schemas, np.ndarray, np.ndarray]:
    """The schemas of a ResNet-18, its state before training and after it."""
    config = load_config(
        ["data=digits", "model=resnet18", "training.batch_size=16", "training.local_epochs=1"]
    )
    learner = build_learner(config, 1)
    centroids = learner.state(Role.SERVER)["global_centroids"]
    random = torch.randn(centroids.shape, generator=torch.Generator().manual_seed(0))
    centroids.copy_(F.normalize(random))
    schemas = Schemas.of(learner, config)
    before = schemas.shared.pack(learner.state(Role.SHARED))
    images = load_dataset(config.data).train.images[:160]
    seed = ClientSeed(0, 1, "0")
    train_round(learner, images, config, seed)
    return schemas, before, schemas.shared.pack(learner.state(Role.SHARED))


def milliseconds(work: Callable[[], object]) -> float:
    """Median of the processor's time, which other processes lengthen less than the wall's."""
    times = []
    for _ in range(REPEATS):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return 1000 * statistics.median(times)


def size(arrays: dict[str, np.ndarray]) -> float:
    """MiB of a message with these arrays."""
    return payload_bytes(RecordDict({ARRAYS: to_record(arrays)})) / MIB


def measure(wire: str) -> dict[str, float | str]:
    """Bytes and times of one wire for the ResNet-18 of `data=cifar10`."""
    config = load_config(["data=cifar10", f"federation.wire={wire}"])
    learner = build_learner(config, 3)
    schemas = Schemas.of(learner, config)
    state = schemas.shared.pack(learner.state(Role.SHARED))
    received = schemas.as_received(state)
    change = np.random.default_rng(0).normal(size=state.size).astype(np.float32) / 1000
    generator = torch.Generator().manual_seed(0)
    codec, sends = schemas.codec, schemas.pack_trained(state + change, received, generator)
    release = release_of(config)
    rows = {n: np.zeros(s, np.float32) for n, s in release.rows.items()}
    down, message = codec.encode("shared", state), pack_state(learner, schemas)
    return {
        "wire": wire,
        "values": state.size,
        "down_mib": size(message),
        "up_mib": size({**sends, **rows}),
        "encode_down_ms": milliseconds(lambda: codec.encode("shared", state)),
        "decode_down_ms": milliseconds(lambda: codec.decode("shared", down)),
        "encode_up_ms": milliseconds(lambda: codec.encode("update", change, generator)),
        "decode_up_ms": milliseconds(lambda: schemas.unpack_trained(sends, received)),
    }


def rounding(
    schemas: Schemas, before: np.ndarray, after: np.ndarray, wire: str, block: int
) -> dict[str, float | str]:
    """Root mean square of what rounding changes in kernels and matrices, beside theirs."""
    codec = BlockCodec(schemas.shared.entries, wire, block)
    entries = schemas.shared.entries
    coded = np.concatenate([np.full(int(np.prod(s)), len(s) >= 2) for _, s in entries])

    def error(values: np.ndarray, generator: torch.Generator | None) -> float:
        decoded = codec.decode("x", codec.encode("x", values, generator))
        return float(np.linalg.norm((decoded - values)[coded]) / np.linalg.norm(values[coded]))

    return {
        "wire": wire,
        "block": block,
        "state": error(after, None),
        "update": error(after - before, torch.Generator().manual_seed(0)),
    }


def main() -> None:
    torch.set_num_threads(1)
    wires = [measure(wire) for wire in ("float32", "float16", "int8", "int4")]
    table(
        ("wire", "MiB down", "up", f"of the published {PUBLISHED}", "ms down", "up"),
        [
            (one["wire"], f"{one['down_mib']:.2f}", f"{one['up_mib']:.2f}",
             f"{max(one['down_mib'], one['up_mib']) / PUBLISHED:.1%}",
             f"{one['encode_down_ms']:.0f}, {one['decode_down_ms']:.0f}",
             f"{one['encode_up_ms']:.0f}, {one['decode_up_ms']:.0f}")
            for one in wires
        ],
    )  # fmt: skip
    trained = trained_on_digits()
    errors = [rounding(*trained, "float16", BLOCK)]
    errors += [rounding(*trained, "int8", block) for block in BLOCKS]
    errors += [rounding(*trained, "int4", block) for block in INT4_BLOCKS]
    print()
    table(
        ("wire", "block", "error of a state", "of an update"),
        [(e["wire"], e["block"], f"{e['state']:.3%}", f"{e['update']:.3%}") for e in errors],
    )
    fewest = wires[-1]
    written = {
        "bytes_up_mb": fewest["up_mib"],  # in units of the published figure, 2**20 bytes
        "bytes_down_mb": fewest["down_mib"],
        "published_mib": PUBLISHED,
        "wires": wires,
        "rounding": errors,
    }
    write("wire", written)


if __name__ == "__main__":
    main()
