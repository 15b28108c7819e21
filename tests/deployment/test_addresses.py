"""What is said of addresses that cannot be listened on."""

import pytest

from orchestra_flwr.config import ConfigError
from orchestra_flwr.deployment.addresses import listen


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("203.0.113.7", "must be an address of this machine; 0.0.0.0"),
        ("none.invalid", "[^()]+: give an address of this machine"),
        (f"{70 * 'x'}.ü", "encoding of hostname failed"),
    ],
)
def test_an_address_that_cannot_be_listened_on_is_said_with_what_to_do(host, why):
    with pytest.raises(ConfigError, match=f"port=0: {why}"):
        listen(host, 0)
    with pytest.raises(ConfigError, match=r"^watch\.host=.* watch\.port=0: "):
        listen(host, 0, "watch.")
