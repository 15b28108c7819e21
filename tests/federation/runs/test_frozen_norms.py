"""Pretrained statistics of BatchNorm that stay as they are, in whole runs."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from orchestra_flwr import load_encoder
from orchestra_flwr.config.reading.saved_config import read_config_file
from orchestra_flwr.export.portable import PortableEncoder
from orchestra_flwr.federation.client.client_app import app as client_app
from orchestra_flwr.federation.messages.fields import ARRAYS
from orchestra_flwr.federation.simulation import prepared
from orchestra_flwr.flower.arrays import from_record
from orchestra_flwr.methods import Role
from orchestra_flwr.models import Encoder, EncoderSpec, build_backbone, save_encoder
from orchestra_flwr.reporting import RunFolder
from orchestra_flwr.reporting.progress import PlainProgress
from orchestra_flwr.training import build_learner, starting_learner

FROZEN = ("model.batch_norm=frozen", "partition=iid", "training.lr=0.01", "evaluation.every=1")
TIMM = ("model=timm", "model.timm=test_resnet")  # 471,000 weights, made for timm's own tests
OFTEN = ("byol", "cbafed", "orchestra", "simclr", "swav")
OTHERS = (
    "barlow_twins", "dino", "mocov2", "orchestra_plus", "rotpred", "semifed", "simsiam",
    "specloss", "spectral", "supervised", "vicreg",
)  # fmt: skip


def statistics(state, start="backbone."):
    """The running statistics of a network in a state, by their names in the network."""
    tensors = {n.removeprefix(start): t for n, t in state.items() if n.startswith(start)}
    return {name: tensor for name, tensor in tensors.items() if "running_" in name}


def after_images(network):
    """A network whose norms have seen images that are not the run's."""
    for _ in range(20):
        network.train()(torch.randn(32, 1, 8, 8))
    return network


@pytest.fixture
def encoder(tiny, tmp_path):
    """A folder with an encoder of the tiny convnet whose norms have seen images."""
    config = tiny()
    backbone = after_images(build_backbone(config.model, config.data.channels))
    folder = tmp_path / "pretrained"
    folder.mkdir()
    save_encoder(folder / "encoder.safetensors", Encoder(EncoderSpec.of(config), backbone))
    return folder


@pytest.fixture
def weights(tmp_path):
    """A file with weights for `TIMM`, as pretrained ones are published."""
    timm = pytest.importorskip("timm", reason="needs the extra timm")
    file = tmp_path / "weights.safetensors"
    network = timm.create_model("test_resnet", in_chans=1, num_classes=10)
    save_file(after_images(network).state_dict(), file)
    return file


def differ(one, other):
    return [name for name in one if not torch.equal(one[name], other[name])]


@pytest.mark.parametrize(
    "method", [*OFTEN, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_every_method_trains_all_but_the_statistics(tiny, tmp_path, federate, encoder, method):
    """Targets' backbones as well, which follow the online one."""
    config = tiny(f"method={method}", f"init={encoder}", f"run_dir={tmp_path / 'run'}", *FROZEN,
                  "evaluation.every=9", "federation.rounds=1")  # fmt: skip
    first = load_file(encoder / "encoder.safetensors")
    run = federate(config, evaluate=False)
    for start in ("backbone.", "target_backbone."):
        learnt = statistics(run.state, start)
        if learnt or start == "backbone.":
            assert learnt and not differ(learnt, statistics(first, ""))
    weights = [n for n in first if n.endswith(("weight", "bias"))]
    assert all(not torch.equal(run.state[f"backbone.{n}"], first[n]) for n in weights)
    saved = load_file(run.folder.path / "encoder.safetensors")
    assert not differ(statistics(saved, ""), first)
    assert run.summary["batch_norm"] == "frozen"


@pytest.mark.parametrize(
    "overrides",
    [
        ("method=orchestra", "federation.wire=int8"),
        *(
            pytest.param(others, marks=pytest.mark.slow)
            for others in (
                ("method=byol", "merging=fedema"),
                ("method=simclr", "federation.wire=int4"),
                ("method=simclr", "federation.weighting=uniform", "privacy.clip=0.5"),
                ("method=simclr", "exchange=clusters", "exchange.warm_rounds=1"),
                ("method=simclr", "terms.alignment.weight=0.1"),
            )
        ),
    ],
)
def test_clients_never_send_them(tiny, tmp_path, federate, watched, weights, overrides):
    """They are sent down in full precision: rounding does not move them either."""
    config = tiny(*TIMM, f"model.weights={weights}", "data.image_size=8", *FROZEN, *overrides,
                  f"run_dir={tmp_path / 'run'}")  # fmt: skip
    shared = build_learner(config, 1).state(Role.SHARED)
    assert not any("running_" in name for name in shared)
    sizes = set()

    def look(client, round_, sent, reply):
        up, down = from_record(reply.content[ARRAYS]), from_record(sent[ARRAYS])
        (server,) = (array for name, array in down.items() if name.endswith("server"))
        assert server.dtype == np.float32 and "server" not in up
        if round_ > 0 and config.federation.wire == "float32":
            sizes.add(up["shared"].size)

    run = federate(config, app=watched(look), evaluate=False)
    assert sizes <= {sum(tensor.numel() for tensor in shared.values())}
    expected = statistics(load_file(weights), "")
    target = "target_backbone.model."
    for start in ("backbone.model.", target)[: 1 + ("method=orchestra" in overrides)]:
        assert expected and not differ(expected, statistics(run.state, start))
    if "merging=fedema" in overrides:  # targets stay with their clients
        states = [load_file(file) for file in run.folder.clients.rglob("2.safetensors")]
        assert states and not any(differ(expected, statistics(s, target)) for s in states)


@pytest.mark.parametrize("method", [pytest.param("simclr", marks=pytest.mark.slow), "orchestra"])
def test_pretrained_ones_stay_as_loaded_where_nobody_has_set_the_key(
    tiny, tmp_path, weights, method, capsys
):
    """The run says so, and its `config.yaml` has it; averaged trains them."""
    loaded = statistics(load_file(weights), "")
    for chosen, stay in (((), True), (("model.batch_norm=averaged",), False)):
        config = tiny(
            *TIMM,
            f"model.weights={weights}",
            f"method={method}",
            "data.image_size=8",
            "federation.rounds=1",
            f"run_dir={tmp_path / str(stay)}",
            *chosen,
        )
        with prepared(config) as run, RunFolder.open(config) as folder:
            run(folder, PlainProgress(1))
        saved = load_file(folder.path / "encoder.safetensors")
        learnt = statistics(saved, "model.")
        assert loaded and differ(loaded, learnt) == ([] if stay else list(loaded))
        stem = "conv1.0.weight"
        assert not torch.equal(saved[f"model.{stem}"], load_file(weights)[stem])  # it was trained
        said = "(model.batch_norm=frozen); model.batch_norm=averaged would train them"
        lines = capsys.readouterr().out
        assert (said in lines) is stay
        assert "images: 8 x 8 pixels (data.image_size), data.normalise=half; the pre" in lines
        wanted = "frozen" if stay else "averaged"
        assert read_config_file(folder.path / "config.yaml")["model"]["batch_norm"] == wanted
    frozen = tiny(*TIMM, f"init={tmp_path / 'True'}")
    assert frozen.model.batch_norm == "frozen"  # whose encoder's statistics have stayed so far
    assert tiny(*TIMM, f"init={tmp_path / 'False'}").model.batch_norm is None
    assert tiny(*TIMM).model.batch_norm is None


def test_scores_and_the_saved_encoder_have_them(tiny, tmp_path, federate, weights):
    """The encoder is read back, begins another run, is trained on and exported with them."""
    config = tiny(*TIMM, f"model.weights={weights}", "data.image_size=8", "method=simclr", *FROZEN,
                  "evaluation.unsupervised=true", f"run_dir={tmp_path / 'run'}")  # fmt: skip
    run = federate(config)
    assert run.summary["batch_norm"] == "frozen"
    assert "initial_statistics" not in run.summary["untrained"]
    assert np.isfinite([run.summary["knn"], run.summary["linear"]]).all()
    expected = statistics(load_file(weights), "")
    encoder, images = load_encoder(run.folder.path), torch.randint(0, 256, (9, 1, 8, 8))
    features = encoder(images)
    assert not differ(statistics(encoder.backbone.state_dict(), "model."), expected)
    portable = PortableEncoder(encoder).eval()(images.to(torch.uint8))
    torch.testing.assert_close(portable, features, atol=1e-5, rtol=1e-4)
    assert torch.equal(encoder.train()(images), features)
    assert not differ(statistics(encoder.backbone.state_dict(), "model."), expected)

    again = starting_learner(tiny(*TIMM, "method=byol", f"init={run.folder.path}", *FROZEN), 1)
    for name in ("backbone", "target_backbone"):
        begun = again.method.get_submodule(name).state_dict()
        assert not differ(encoder.backbone.state_dict(), begun)


@pytest.mark.slow
def test_a_killed_run_resumed_ends_in_the_same_bits(tiny, tmp_path, federate, watched, encoder):
    """It needs the first encoder no more."""
    first = load_file(encoder / "encoder.safetensors")

    def config(run):
        return tiny(f"init={encoder}", f"run_dir={tmp_path / run}", *FROZEN)

    def look(client, round_, sent, reply):
        if round_ == 2:
            raise KeyboardInterrupt

    whole = federate(config("whole"))
    killed = RunFolder.create(config("torn"))
    with pytest.raises(KeyboardInterrupt):
        federate(config("torn"), app=watched(look), folder=killed)
    for file in encoder.iterdir():
        file.unlink()
    again = federate(config("torn"), app=client_app, folder=RunFolder.resume(killed.path))
    assert not differ(whole.state, again.state)
    assert not differ(statistics(again.state), first)
    assert again.summary["linear"] == whole.summary["linear"]
