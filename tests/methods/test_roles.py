import pytest

from orchestra_flwr.methods.roles import Role, role_of

ROLES = {"net": Role.SHARED, "net.stem": Role.FROZEN, "net.stem.bias": Role.LOCAL}


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("net", Role.SHARED),
        ("net.head.weight", Role.SHARED),
        ("net.stem.weight", Role.FROZEN),
        ("net.stem.bias", Role.LOCAL),
        ("net.stem2.weight", Role.SHARED),  # entries are whole parts of a name
    ],
)
def test_the_longest_entry_decides(name, role):
    assert role_of(name, ROLES) is role


@pytest.mark.parametrize("name", ["network.weight", "head.net", ""])
def test_there_is_no_default(name):
    with pytest.raises(ValueError, match=f"^the tensor {name} has no role: return one from"):
        role_of(name, ROLES)
