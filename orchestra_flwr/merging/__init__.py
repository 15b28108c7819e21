"""What a client makes of its own state and of what the server sends: one file a policy."""

from orchestra_flwr.merging.base import ClientState, Merging, has_local_state, keeps_state

__all__ = ["ClientState", "Merging", "has_local_state", "keeps_state"]
