"""Sums of adapters: what nobody trains is not in them, and the model is that of plain rounds."""

import pytest

from orchestra_flwr.federation.messages.fields import ARRAYS
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.federation.secure_aggregation.sum_codec import codec_of
from orchestra_flwr.training import build_learner
from tests.federation.secure_aggregation.test_secure_runs import SECURE, SIMCLR, Dropping, far

NETWORK = "test_vit.r160_in1k"  # timm's smallest, for its tests


@pytest.mark.parametrize("adaptation", [
    ("head",), ("blocks", "adaptation.last=1"), ("norms",), ("lora", "adaptation.rank=2"),
    ("lora", "adaptation.rank=2", "adaptation.alternate=true"),
], ids=" ".join)  # fmt: skip
@pytest.mark.parametrize("network", ["convnet", pytest.param("timm", marks=pytest.mark.slow)])
def test_adapters_are_summed_as_they_are_averaged(tiny, federate, adaptation, network):
    """Two of six clients drop out: one before it sends its adapters, one after."""
    name, *options = adaptation
    if network == "timm":
        pytest.importorskip("timm", reason="needs the extra timm")
    if name == "lora":
        pytest.importorskip("peft", reason="needs the extra timm")
    vit = ("model=timm", f"model.timm={NETWORK}", "data.image_size=32")
    chosen = (*(vit if network == "timm" else ()), f"adaptation={name}", *options)
    app = Dropping({"input": ["1"], "unmask": ["4"]})
    config = tiny(*SECURE, *chosen)
    one = federate(config, app=app, evaluate=False)
    other = federate(tiny(*SIMCLR, *chosen), app=Dropping({"train": ["1"]}), evaluate=False)
    assert far(one, other) < 1e-4
    assert one.state.keys() == other.state.keys()
    schemas = Schemas.of(build_learner(config, 1), config)
    trained = schemas.shared.size
    assert 0 < trained < trained + schemas.frozen.size
    vectors = [reply.content[ARRAYS] for stage, _, _, reply in app.sent if stage == "input"
               and reply.has_content()]  # fmt: skip
    assert len(vectors) == 5
    sizes = {f"ring{bits}": (size,) for bits, size in codec_of(config, schemas).layout}
    assert all({n: tuple(a.shape) for n, a in v.items()} == sizes for v in vectors)
    assert sum(size for (size,) in sizes.values()) == trained + sizes["ring64"][0]
