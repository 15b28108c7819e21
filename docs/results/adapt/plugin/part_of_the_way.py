"""Scores of an encoder between a run's first weights and its last ones.

    python docs/results/adapt/plugin/part_of_the_way.py RUN 0.1 0.25 0.5

RUN is the folder of a run with labels whose checkpoint is there. A share of .25 is a quarter of the
way from the network as it was loaded (0) to the last round (1), for every trained weight
(Wortsman et al., "Robust fine-tuning of zero-shot models", https://arxiv.org/abs/2109.01903).
"""

import sys
from pathlib import Path

from orchestra_flwr.config import read_run
from orchestra_flwr.data import load_dataset
from orchestra_flwr.federation.server.evaluator import Evaluator
from orchestra_flwr.methods import Role
from orchestra_flwr.tensor_files import load_tensors
from orchestra_flwr.training import starting_learner


def main(run: Path, shares: list[float]) -> None:
    """Prints kNN and linear probe for each share."""
    config = read_run(run)
    evaluator = Evaluator(config, load_dataset(config.data))
    learner = starting_learner(config, config.data.channels)
    state = learner.state(Role.SHARED)
    start = {name: tensor.clone() for name, tensor in state.items()}
    end, _ = load_tensors(run / "checkpoint" / "state.safetensors")
    for share in shares:
        for name, tensor in state.items():
            tensor.copy_(start[name].lerp(end[name], share))
        scores = evaluator.scores(learner.method, kept_only=True) or {}
        for backbone, values in scores.items():
            print(f"{backbone}, {share:g}: {values['knn']:.1%} / {values['linear']:.1%}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [float(share) for share in sys.argv[2:]])
