import pytest

from orchestra_flwr.config import load_config
from orchestra_flwr.experiments.planning.scaling import scaled_override


@pytest.mark.parametrize(("clients", "epochs"), [(10, 1), (50, 5), (100, 10), (400, 40), (3, 1)])
def test_local_epochs_keep_the_number_of_steps(clients, epochs):
    """50,000 images, batches of 10: a client's steps, where nothing was rounded up to 1."""
    reference = load_config(["federation.clients=100", "training.local_epochs=10"])
    config = load_config([f"federation.clients={clients}"])
    override = scaled_override("local_epochs_with_clients", config, reference)
    assert override == f"training.local_epochs={epochs}"
    if clients >= 10:
        assert 50_000 / clients / 10 * epochs == 500


@pytest.mark.parametrize(
    ("participation", "lr"), [(0.5, "0.003"), (0.125, "0.0015"), (1, "0.00424264")]
)
def test_the_learning_rate_goes_with_the_square_root(participation, lr):
    reference = load_config(["federation.participation=0.5", "training.lr=0.003"])
    config = load_config([f"federation.participation={participation}"])
    assert scaled_override("lr_with_participation", config, reference) == f"training.lr={lr}"


def test_overrides_follow_the_reference():
    reference = load_config(["federation.clients=20", "training.local_epochs=2"])
    config = load_config(["federation.clients=40", "federation.participation=0.25"])
    epochs = scaled_override("local_epochs_with_clients", config, reference)
    assert epochs == "training.local_epochs=4"
    assert scaled_override("lr_with_participation", config, reference) == "training.lr=0.015"
