"""`run_sim.py`, evaluated as `published_run.py` is: by kNN of one backbone, without a linear probe.

The untrained encoder is evaluated with BatchNorm's statistics as they are, and the summary's
`linear` is 0.
"""

import sys

from orchestra_flwr.cli import main
from orchestra_flwr.evaluation import scores
from orchestra_flwr.federation.server.evaluator import Evaluator, Scores
from orchestra_flwr.methods import Method

all_scores = Evaluator.scores


def scores_of_one(
    self: Evaluator, method: Method, *, untrained: bool = False, kept_only: bool = False
) -> Scores | None:
    """The kept backbone's, as it is; in the summary they stand for the others as well."""
    backbone_scores = all_scores(self, method, kept_only=True)
    return backbone_scores and dict.fromkeys(method.backbones(), *backbone_scores.values())


if __name__ == "__main__":
    Evaluator.scores = scores_of_one  # type: ignore[method-assign]
    scores._probe_scores = lambda *_: {"linear": 0.0}  # type: ignore[assignment]
    sys.exit(main())
