import pytest

from orchestra_flwr.config import ConfigError
from orchestra_flwr.experiments.planning.axes import joined_values
from orchestra_flwr.experiments.planning.plan import make_plan

KNOWN = {"base", "GroupNorm", "GroupNorm, clip 3", "a,b,c", "clip 3"}


@pytest.mark.slow
def test_rows_are_left_out_where_the_paper_has_none():
    plan, _ = make_plan("table2", "paper", seeds=[0])
    variants = {"CIFAR-10": set(), "CIFAR-100": set()}
    for row in plan.rows:
        variants[row.values["dataset"]].add(row.values["variant"])
    assert variants["CIFAR-10"] == {
        *("base", "G=8", "G=16", "G=64", "G=128", "L=2", "L=4", "L=16", "Reps")
    }
    assert variants["CIFAR-100"] == {*("base", "G=64", "G=128", "G=512", "L=8", "L=64", "Reps")}


def test_only_keeps_rows_with_all_of_the_values():
    plan, _ = make_plan("figure10", "paper", seeds=[0], only=["CIFAR-10", "1e5", "1e-3"])
    assert [(r.values["dataset"], r.values["alpha"]) for r in plan.rows] == [
        ("CIFAR-10", "1e5"),
        ("CIFAR-10", "1e-3"),
    ]
    cut = ["GroupNorm", " clip 3"]  # as a command line separates values
    plan, _ = make_plan("privacy", "small", seeds=[0], only=cut)
    assert {row.values["variant"] for row in plan.rows} == {"GroupNorm, clip 3"}
    assert plan.command.endswith("only='GroupNorm, clip 3'")
    with pytest.raises(ConfigError, match=r"only=MNIST: must be among CIFAR-10; CIFAR-100; "):
        make_plan("figure10", "paper", only=["MNIST"])
    with pytest.raises(ConfigError, match="no row has all of these values"):
        make_plan("table2", "paper", only=["CIFAR-10", "G=512"])


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


def test_no_values_are_none():
    assert joined_values((), KNOWN) == []
