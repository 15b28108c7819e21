import pytest

from orchestra_flwr.console.text import counted, duration, listed, lookup, percent, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (4.23, "4.2 s"),
        (42, "42 s"),
        (119, "2 min"),
        (3599, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (250_000, "3 days"),
    ],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_one_thing_is_singular():
    assert [counted(n, "step") for n in (0, 1, 1200)] == ["0 steps", "1 step", "1,200 steps"]


def test_the_first_of_very_many_are_listed():
    assert listed([]) == "" and listed(["a", "b"]) == "a, b"
    assert listed("abcde") == "a, b, c, d, e" and listed("abcdefg") == "a, b, c, d, e, and 2 more"
    assert listed(["a", "b"], 1, "; ") == "a; and 1 more"


def test_size():
    assert [size(n) for n in (12, 4_500, 45_000_000, 2e9, 3e12)] == [
        "12 B",
        "4.5 kB",
        "45.0 MB",
        "2.0 GB",
        "3.0 TB",
    ]


def test_percent():
    assert percent(0.4512) == "45.1 %"


def test_lookup():
    record = {"scores": {"target": {"knn": 0}}, "loss": None}
    assert lookup(record, "scores", "target", "knn") == 0
    for keys in (("scores", "online", "knn"), ("loss", "total"), ("nothing",)):
        assert lookup(record, *keys) is None
