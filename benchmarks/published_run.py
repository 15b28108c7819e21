"""A whole run of the published recipe, written from its description: the baseline of ours.

    python benchmarks/published_run.py PHOTOS RESULT [--rounds 2 ...]

Every client of a round builds its network and its data set anew, gets the whole state and sends it
back; the server averages all of it by the clients' batches, moves the global centroids by 500 steps
of SGD, and evaluates the online backbone by kNN after the first clustering and each round. All
passes are in float32. Clients train side by side, in as many processes as there are cores, with one
thread each; those are started once. Neither Flower nor Ray takes part, which favours it.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from published import PublishedClient
from torch import Tensor
from torchvision.transforms.functional import pil_to_tensor

from orchestra_flwr.clustering.sinkhorn_knopp import sinkhorn
from orchestra_flwr.clustering.solvers.gradient import gradient_clustering
from orchestra_flwr.config import Config, load_config
from orchestra_flwr.evaluation import knn_accuracy
from orchestra_flwr.machine_limits import usable_cpus
from orchestra_flwr.methods.orchestra import Orchestra
from orchestra_flwr.training import build_learner

EVALUATED_AT_ONCE = 256
State = dict[str, Tensor]
Task = tuple[Config, State, Tensor, bool]  # of a client: state, images, whether it trains
Answer = tuple[State, Tensor, int]  # state, local centroids, batches


def network(config: Config) -> Orchestra:
    built = build_learner(config, config.data.channels).train().method
    assert isinstance(built, Orchestra)
    return built


def photographs(folder: Path) -> tuple[Tensor, Tensor]:
    """Images (N, 3, H, W) uint8 and classes (N,) of a folder with a folder for each class."""
    images, labels = [], []
    for label, name in enumerate(sorted(folder.iterdir())):
        for file in sorted(name.iterdir()):
            images.append(pil_to_tensor(Image.open(file).convert("RGB")))
            labels.append(label)
    return torch.stack(images), torch.tensor(labels)


def client(task: Task) -> Answer:
    """One client's part of a round."""
    config, state, images, trains = task
    model = network(config)
    model.load_state_dict(state)
    steps = PublishedClient(model, images, config)
    if trains:
        for _ in range(config.training.local_epochs * len(steps.loader)):
            steps.step()
    else:
        fill_memory(steps, -(-config.clustering.options["memory"] // config.training.batch_size))
    clusters = local_clusters(steps.memory, int(config.clustering.options["local_clusters"]))
    return steps.model.state_dict(), clusters, len(steps.loader)


@torch.no_grad()
def fill_memory(steps: PublishedClient, batches: int) -> None:
    """The first round: target features of a few batches; BatchNorm is as before afterwards."""
    before = {name: t.clone() for name, t in steps.model.state_dict().items()}
    for _ in range(batches):
        view = steps.batch()[0]
        target = steps.model.target_projector(steps.model.target_backbone(view))
        steps.memory = torch.cat([steps.memory[len(target) :], F.normalize(target, dim=1)])
    steps.model.load_state_dict(before)


@torch.no_grad()
def local_clusters(features: Tensor, count: int, moves: int = 5) -> Tensor:
    """(count, d): five times Sinkhorn, the most likely cluster of each feature, and their means."""
    centroids = features[torch.randperm(len(features))[:count]]
    for _ in range(moves):
        nearest = sinkhorn(features @ centroids.T, iterations=10)[0].argmax(1)
        for number in range(count):
            members = features[nearest == number]
            if not len(members):
                members = features[random.randrange(len(features))][None]
            centroids[number] = F.normalize(members.mean(0), dim=0)
    return centroids


def average(answers: list[Answer]) -> State:
    """The mean of all tensors of the clients' states, by their batches."""
    total = sum(batches for _, _, batches in answers)
    return {
        name: sum(state[name].double() * batches for state, _, batches in answers).div(total).to(t)
        for name, t in answers[0][0].items()
    }


@torch.no_grad()
def knn(model: Orchestra, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> float:
    """Of the online backbone, in full batches; what is left over is left out."""
    model.eval()
    pairs = []
    for images, labels in (train, test):
        whole = max(1, len(images) // EVALUATED_AT_ONCE) * EVALUATED_AT_ONCE
        batches = images[:whole].split(EVALUATED_AT_ONCE)
        features = torch.cat([model.backbone(b.float() / 127.5 - 1) for b in batches])
        pairs.append((features, labels[:whole]))
    model.train()
    return knn_accuracy(*pairs[0], *pairs[1])


def run(
    config: Config,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    answers_of: Callable[[Callable[[Task], Answer], Iterable[Task]], Iterable[Answer]],
) -> list[float]:
    """The first clustering and all rounds; returns the kNN of each.

    Args:
        config: of the run.
        train: all clients' images, and their labels.
        test: test images and labels.
        answers_of: `map`, of this process or of several.
    """
    federation = config.federation
    parts = torch.randperm(len(train[0])).chunk(federation.clients)
    model = network(config).to(memory_format=torch.contiguous_format)
    accuracies = []
    for number in range(federation.rounds + 1):
        cohort = random.sample(parts, max(2, int(federation.clients * federation.participation)))
        tasks: Iterator[Task] = (
            (config, model.state_dict(), train[0][part], number > 0) for part in cohort
        )
        answers = list(answers_of(client, tasks))
        model.load_state_dict(average(answers))
        points = torch.cat([centroids for _, centroids, _ in answers])
        moved = gradient_clustering(points, model.global_centroids, torch.default_generator)
        model.global_centroids.copy_(moved)
        accuracies.append(knn(model, train, test))
    return accuracies


def begin() -> None:
    """A client's process."""
    torch.set_num_threads(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    config = load_config(arguments.overrides)
    train, test = (photographs(arguments.photos / part) for part in ("train", "test"))
    with get_context("spawn").Pool(usable_cpus(), begin) as pool:
        accuracies = run(config, train, test, pool.imap)
    arguments.result.write_text(json.dumps({"knn": accuracies}))


if __name__ == "__main__":
    main()
