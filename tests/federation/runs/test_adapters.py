"""Low-rank adapters in whole runs: what their messages weigh, and when their mean is exact."""

import numpy as np
import pytest
import torch

from orchestra_flwr.federation.messages.fields import ARRAYS, METRICS
from orchestra_flwr.federation.messages.schema import Schema, Schemas
from orchestra_flwr.flower.arrays import from_record, size_in_bytes
from orchestra_flwr.training import build_learner

pytest.importorskip("peft", reason="needs the extra timm")

LORA = ("method=simclr", "adaptation=lora", "training.lr=0.05", "evaluation.every=9")
MIB = 2**20


@pytest.mark.parametrize(("wire", "most"), [("float32", 0.6), ("int8", 0.15)])
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("vit_small_patch16_224", 16),
        pytest.param("vit_small_patch14_dinov2", 14, marks=pytest.mark.slow),
    ],
)
def test_a_small_transformers_adapters_fit_the_promise(
    tiny, federate, watched, name, size, wire, most
):
    """Those of a ViT-S, in a round's messages each way; the method's head is not counted."""
    pytest.importorskip("timm", reason="needs the extra timm")
    config = tiny(*LORA, "model=timm", f"model.timm={name}", f"data.image_size={size}",
                  "adaptation.rank=8", f"federation.wire={wire}", "federation.rounds=1",
                  "data.train_limit=16", "federation.clients=2", "partition=iid",
                  "federation.participation=1", "training.batch_size=8")  # fmt: skip
    schemas = Schemas.of(build_learner(config, 1), config)
    entries = dict(schemas.shared.entries)
    adapters = {name for name in entries if name.startswith("backbone.")}
    assert adapters and all("qkv.lora_" in name for name in adapters)
    head = Schema(tuple(entry for entry in schemas.shared.entries if entry[0] not in adapters))
    codec = Schemas(head, schemas.server, wire).codec
    sizes = []

    def look(client, round_, sent, reply):
        for record, kind in ((sent[ARRAYS], "shared"), (reply.content[ARRAYS], schemas.reply)):
            of_head = codec.encode(kind, np.ones(head.size, np.float32), torch.Generator())
            all_bytes = sum(size_in_bytes(array) for array in record.values())
            sizes.append(all_bytes - sum(array.nbytes for array in of_head.values()))

    federate(config, app=watched(look), evaluate=False)
    assert len(sizes) == 4 and all(0.5 * most * MIB < size <= most * MIB for size in sizes)


@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_the_mean_of_halves_in_turns_gives_the_mean_of_the_products(tiny, federate, watched, wire):
    """Of two clients of unequal size: the half that rests is equal to the bit on both."""
    config = tiny(*LORA, "adaptation.alternate=true", "model=vit_tiny", "model.width=24",
                  "model.depth=1", "federation.clients=2", "federation.participation=1",
                  "partition.alpha=0.01", "seed=1", f"federation.wire={wire}")  # fmt: skip
    schemas = Schemas.of(build_learner(config, 1), config)
    sent, replies = {}, {1: [], 2: []}

    def halves(state):
        return [next(state[n] for n in state if f".lora_{half}." in n) for half in "BA"]

    def look(client, round_, message, reply):
        received = schemas.codec.decode("shared", from_record(message[ARRAYS]))
        trained = schemas.unpack_trained(from_record(reply.content[ARRAYS]), received)
        sent[round_] = halves(schemas.shared.views(received))
        images = reply.content[METRICS]["examples"]
        replies[round_].append((images, *halves(schemas.shared.views(trained))))

    run = federate(config, app=watched(look), evaluate=False)
    for round_, (one, other) in replies.items():
        (n, *mine), (m, *theirs) = one, other
        rests = round_ % 2  # of B and A
        assert abs(n - m) > 30 and not torch.equal(mine[1 - rests], theirs[1 - rests])
        assert torch.equal(mine[rests], theirs[rests])
        assert torch.equal(mine[rests], sent[round_][rests])
        up, down = ((n * a + m * b) / (n + m) for a, b in zip(mine, theirs, strict=True))
        products = (n * mine[0] @ mine[1] + m * theirs[0] @ theirs[1]) / (n + m)
        torch.testing.assert_close(up @ down, products, atol=1e-7, rtol=1e-5)
    # With few bits clients train A beside the B that they received, and the server keeps its own.
    assert torch.equal(halves(run.state)[0], sent[2][0]) == (wire == "float32")
