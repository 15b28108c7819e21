"""FedAvg's star: one server, one model, one stage a round.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017 (arXiv 1602.05629), Algorithm 1.
"""

from typing import ClassVar

from orchestra_flwr.federation.exchanges import Exchange


class Star(Exchange):
    """Every client of the cohort trains the one model, which becomes their mean."""

    private: ClassVar[bool] = True
    one_average: ClassVar[bool] = True
