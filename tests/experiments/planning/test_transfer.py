import pytest

from orchestra_flwr.config import ConfigError
from orchestra_flwr.experiments.planning.transfer import transfer_name


def test_an_evaluation_is_named_by_its_images():
    name = transfer_name(("data=digits", "data.image_size=16"))
    assert name.startswith("transfer-digits-")
    assert transfer_name(("data=digits", "data.image_size=16", "data.test_limit=20")) != name
    assert transfer_name(("data=stl10",)).startswith("transfer-stl10-")
    assert transfer_name(()) is None


def test_images_that_are_not_there_are_refused():
    with pytest.raises(ConfigError, match="data=imagenet: must be one of"):
        transfer_name(("data=imagenet",))
