"""Krum: the one state that lies closest to others."""

from pydantic import Field

from orchestra_flwr.config import Section
from orchestra_flwr.federation.aggregations.multi_krum import MultiKrum


class Krum(MultiKrum):
    """The state with the smallest score of :class:`MultiKrum`: one client's model.

    Algorithm of Section 4 of Blanchard et al., "Machine Learning with Adversaries: Byzantine
    Tolerant Gradient Descent", NeurIPS 2017, https://arxiv.org/abs/1703.02757.
    """

    class Settings(Section):
        attackers: int = Field(1, ge=1)  # at most (their f)

        @property
        def chosen(self) -> int:
            """States that are chosen."""
            return 1
