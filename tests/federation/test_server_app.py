"""The app of `flwr run .` refuses what a simulation refuses, before it reads an image."""

from types import SimpleNamespace

import pytest

from orchestra_flwr.config import ConfigError
from orchestra_flwr.data.sources.digits import Digits
from orchestra_flwr.federation import server_app


@pytest.mark.parametrize(
    ("overrides", "refused"),
    [
        (
            "privacy.clip=1 privacy.noise_multiplier=0.02 federation.weighting=uniform",
            r"noise_multiplier=0.02: must be 0 in a simulation",
        ),
        ("run_dir={taken}", "run_dir=.*"),
        ("model.width=16384", "GB"),
    ],
)
def test_what_cannot_work_is_refused_before_images_are_read(
    overrides, refused, monkeypatch, tmp_path
):
    def read(self):
        raise AssertionError("an image was read")

    (tmp_path / "config.yaml").write_text("seed: 0\n")
    monkeypatch.setattr(Digits, "load", read)
    given = f"data=digits method=simclr {overrides.format(taken=tmp_path)}"
    context = SimpleNamespace(run_config={"overrides": given})
    with pytest.raises(ConfigError, match=refused):
        server_app.main(None, context)
