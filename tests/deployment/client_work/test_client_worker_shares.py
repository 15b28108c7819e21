"""What a real client sends beside its training: only what its own configuration allows."""

import numpy as np
import pytest
from PIL import Image

from orchestra_flwr.config import ConfigError
from orchestra_flwr.federation.messages.fields import METRICS

ALLOWED = "share.personal_accuracy=true"


@pytest.fixture
def photos(tmp_path):
    """20 photographs of two classes, which are bright and dark."""
    rng = np.random.default_rng(0)
    for name, low in (("dark", 0), ("bright", 150)):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for i in range(10):
            pixels = rng.integers(low, low + 100, (20, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.png")
    return tmp_path / "photos"


@pytest.fixture
def server(configured):
    return configured("evaluation.personal_labels=12")


def test_the_accuracy_of_a_head_leaves_where_the_client_allows_it(worker, server, said, ask, task):
    reply = ask(worker(ALLOWED), "evaluate", task(server, 3))
    scores = dict(reply[METRICS])
    assert scores.keys() == {"examples", "own/personal"} and not reply.array_records
    assert scores["own/personal"] in [i / 8 for i in range(9)]  # eight are left to judge by
    assert said[-1] == (
        f"round 3: accuracy of a head from 12 labels here {100 * scores['own/personal']:.1f} %, "
        "sent"
    )


def test_by_default_it_does_not(worker, server, said, ask, greeting, task):
    one = worker()
    assert "refusal" not in ask(one, "greet", greeting(server)).config_records["config"]
    reply = ask(one, "evaluate", task(server, 3))
    assert dict(reply[METRICS]) == {"examples": 20} and not reply.array_records
    assert said[-1] == (
        "round 3: accuracy of a head from 12 labels here not sent: share.personal_accuracy=false"
    )


@pytest.mark.parametrize("labelled", [True, False])
def test_too_few_labels_are_not_sent(worker, configured, photos, said, ask, task, labelled):
    count = 20 if labelled else 2
    if not labelled:
        for file in list(photos.glob("*/*.png")):
            file.rename(photos / f"{file.parent.name}{file.name}")
        for folder in ("dark", "bright"):
            (photos / folder).rmdir()
    server = configured(f"evaluation.personal_labels={count}")
    reply = ask(worker(ALLOWED), "evaluate", task(server, 1))
    assert dict(reply[METRICS]) == {"examples": 20}
    assert said[-1] == (
        f"round 1: accuracy of a head from {count} labels here not sent: no more images have a "
        "label (a folder for each class)"
    )


@pytest.mark.parametrize("key", ["epsilon", "total_epsilon"])
def test_it_is_refused_beside_bounds_that_it_would_break(worker, key):
    with pytest.raises(ConfigError) as caught:
        worker(ALLOWED, f"privacy.{key}=1")
    assert str(caught.value) == (
        "share.personal_accuracy=true: the accuracy is not differentially private, must be false "
        f"with privacy.{key}"
    )
