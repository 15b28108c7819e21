"""What the gate knows of the Fleet API is what Flower does."""

from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

from orchestra_flwr.flower.fleet import MAX_AGE, MAX_AHEAD


def test_the_limits_of_a_signed_time_are_flowers():
    assert MAX_AHEAD == SYSTEM_TIME_TOLERANCE
    assert MAX_AGE == TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
