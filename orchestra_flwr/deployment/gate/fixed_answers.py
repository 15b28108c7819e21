"""What the gate itself says to clients, and about them."""

NOT_READY = {"detail": "The server is not ready, try again."}  # a SuperNode does, by itself
NO_SUPERLINK = {"detail": "The SuperLink behind the gate does not answer."}
BUSY = "the SuperLink has more to do than it can: clients wait, and try again by themselves"
# The SuperLink's own answers to a key that it does not know. At a 412 to its registration a
# SuperNode prints the code and ends; at a 401 it signs off and ends, even in the middle of a round.
UNKNOWN_KEY, UNKNOWN_KEY_REGISTERS, NOT_ACTIVATED = 401, 412, 2004
TOO_LARGE = 413  # said to a registered client: the rest of its request is waited for
NO_REPLY = 400
REFUSED = {
    NO_REPLY: "Only replies are taken.",
    UNKNOWN_KEY: "This key is not registered.",
    UNKNOWN_KEY_REGISTERS: "This key is not registered.",
    404: "Not found.",
    411: "A request has to say its length.",
    TOO_LARGE: "More than a client may send.",
}


def forbidden(method: str, path: str) -> str:
    """A line about a request that is served to nobody on the network."""
    if path.startswith(("/v1/control", "/v1/runtime")):
        return f"asked for {path}, which is only served to this machine"
    return f"asked for {method} {path}, which is not served"
