"""No attack: all clients are honest."""

from typing import Any

from orchestra_flwr.federation.attacks import Attack


class Honest(Attack):
    """Nobody attacks."""

    @classmethod
    def unread(cls, config: Any) -> dict[str, str]:
        """The number of attackers is not read."""
        return {"attack.clients": "with attack=none"}
