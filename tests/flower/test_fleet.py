"""What is known here of the Fleet API is what Flower does."""

from datetime import timedelta

import pytest
from flwr.app import Message, RecordDict
from flwr.app.message import message as flowers
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE
from flwr.server.utils.validator import validate_message

from orchestra_flwr.flower.fleet import MAX_AGE, MAX_AHEAD, MAX_CLOCK_DIFFERENCE, time_to_live
from orchestra_flwr.flower.process_identity import identify_process


def test_the_limits_of_a_signed_time_are_flowers():
    assert MAX_AHEAD == SYSTEM_TIME_TOLERANCE
    assert MAX_AGE == TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE


@pytest.mark.parametrize("ahead", [MAX_CLOCK_DIFFERENCE, -MAX_CLOCK_DIFFERENCE])
def test_a_reply_by_a_clock_that_is_an_hour_off_has_not_expired(ahead, monkeypatch):
    identify_process()
    message = Message(RecordDict(), 7, "query", ttl=time_to_live(1.0))
    of_server = flowers.now
    monkeypatch.setattr(flowers, "now", lambda: of_server() + timedelta(seconds=ahead))
    reply = Message(RecordDict(), reply_to=message)
    assert not [line for line in validate_message(reply, True) if "ttl" in line.lower()]
