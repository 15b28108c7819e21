"""Virtual time by hand."""

import pytest

from orchestra_flwr.federation.clocks import DAY, HOUR, Device
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.federation.server.timeline import Timeline
from orchestra_flwr.training import build_learner

FAST = 1e12  # a link that takes no time
IMAGES = {"a": 10, "b": 20}


@pytest.fixture
def timeline(tiny):
    """Two clients with 10 and 20 images, of which each trains one in a second; b is away at 6."""
    config = tiny("clock=virtual", "method=simclr", "training.local_epochs=1")
    schemas = Schemas.of(build_learner(config, 3), config)
    devices = {"a": Device(1, FAST, FAST), "b": Device(1, FAST, FAST, 6, 12)}
    return Timeline(config, devices, IMAGES, schemas)


def test_who_still_works_ends_that_before_it_begins_again(timeline):
    timeline.load_state({**timeline.state(), "busy": {"a": 7.0}})
    assert timeline.end("a", trains=True) == pytest.approx(17, abs=1e-3)
    assert timeline.end("b", trains=True) == pytest.approx(20, abs=1e-3)


def test_few_images_take_as_long_as_their_epochs(timeline):
    training = timeline.config.training.model_copy(update={"min_steps": 3})
    timeline.config = timeline.config.model_copy(update={"training": training})
    assert timeline.end("a", trains=True) == pytest.approx(30, abs=1e-3)
    assert timeline.end("a", trains=False) == pytest.approx(10, abs=1e-3)


def test_who_is_at_work_and_there_is_busy(timeline):
    timeline.load_state({**timeline.state(), "busy": {"a": 7.0, "b": DAY}})
    assert timeline.free(IMAGES) == ["a"] and timeline.now == 7
    assert timeline.busy() == 1  # b alone
    timeline.now = 8 * HOUR  # at which it is away
    assert timeline.busy() == 0
