import pytest

from orchestra_flwr.experiments.planning.joined_values import joined_values

KNOWN = {"base", "GroupNorm", "GroupNorm, clip 3", "a,b,c", "clip 3"}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("base", ["base"]),
        ("GroupNorm, clip 3,base", ["GroupNorm, clip 3", "base"]),
        ("base, GroupNorm", ["base", "GroupNorm"]),
        ("clip 3,GroupNorm", ["clip 3", "GroupNorm"]),
        ("a,b,c,a,b", ["a,b,c", "a", "b"]),
        (" GroupNorm,clip 3", ["GroupNorm", "clip 3"]),
    ],
)
def test_the_longest_known_value_is_taken(text, values):
    assert joined_values(text.split(","), KNOWN) == values


def test_none_are_none():
    assert joined_values((), KNOWN) == []
