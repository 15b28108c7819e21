"""The app of `flwr run .` refuses what a simulation refuses, before it reads an image."""

from types import SimpleNamespace

import pytest

from orchestra_flwr.config import ConfigError
from orchestra_flwr.data.sources.digits import Digits
from orchestra_flwr.federation import server_app


def test_noise_beside_batch_norm_is_refused_before_images_are_read(monkeypatch):
    def read(self):
        raise AssertionError("an image was read")

    monkeypatch.setattr(Digits, "load", read)
    noise = "privacy.clip=1 privacy.noise_multiplier=0.02 federation.weighting=uniform"
    context = SimpleNamespace(run_config={"overrides": f"data=digits method=simclr {noise}"})
    with pytest.raises(ConfigError, match=r"noise_multiplier=0.02: must be 0 in a simulation"):
        server_app.main(None, context)
