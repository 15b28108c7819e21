"""A federation whose network is timm's and begins with weights that were trained elsewhere."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from orchestra_flwr.federation.client.client_app import app as client_app
from orchestra_flwr.models import load_encoder
from orchestra_flwr.reporting import RunFolder

NAME = "mobilenetv3_small_050"


@pytest.mark.slow  # a network of 50 layers, ten times
def test_it_begins_with_the_weights_and_needs_them_no_more(tiny, tmp_path, federate, watched):
    """Clients train what was sent to them, and a resumed run ends in the same bits without them."""
    timm = pytest.importorskip("timm", reason="needs the extra timm")
    file = tmp_path / "weights.safetensors"
    torch.manual_seed(1)
    save_file(timm.create_model(NAME, in_chans=1, num_classes=10).state_dict(), file)
    expected, stem = load_file(file), "conv_stem.weight"
    sent = []

    def look(client, round_, message, reply):
        if not sent:
            file.unlink()  # from here on nobody reads it
        sent.append(round_)
        if stop and round_ == 2:
            raise KeyboardInterrupt
        return reply

    def config(run):
        return tiny("method=simclr", "model=timm", f"model.timm={NAME}", "data.train_limit=64",
                    f"model.weights={file}", "data.image_size=8", f"run_dir={tmp_path / run}",
                    "model.batch_norm=averaged", "partition=iid", "evaluation.every=9",
                    "training.lr=1e-7")  # fmt: skip

    stop = False
    whole = federate(config("whole"), app=watched(look))
    trained = whole.state[f"backbone.model.{stem}"]
    torch.testing.assert_close(trained, expected[stem], atol=1e-4, rtol=1e-3)  # a tiny rate
    save_file(expected, file)
    stop, killed = True, RunFolder.create(config("torn"))
    sent.clear()
    with pytest.raises(KeyboardInterrupt):
        federate(config("torn"), app=watched(look), folder=killed)
    assert not file.exists()
    again = federate(config("torn"), app=client_app, folder=RunFolder.resume(killed.path))
    assert all(torch.equal(value, again.state[name]) for name, value in whole.state.items())
    assert load_encoder(again.folder.path).dim == 1024
