"""Attacks, alone and in whole federations."""

import numpy as np
import pytest
import torch

from orchestra_flwr.config import ConfigError, load, load_config
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.federation.attacks import Attack, attacked_state, attackers
from orchestra_flwr.federation.attacks.backdoor import Backdoor, stamped
from orchestra_flwr.federation.attacks.random_weights import RandomWeights
from orchestra_flwr.federation.attacks.scaled import Scaled
from orchestra_flwr.federation.attacks.sign_flip import SignFlip
from orchestra_flwr.federation.errors import FederationError

RECEIVED, TRAINED = np.array([1, 2], np.float32), np.array([2, 4], np.float32)


def sent(attack, **options):
    generator = torch.Generator().manual_seed(0)
    return attack(attack.Settings(**options)).sent(RECEIVED, TRAINED, generator)


def test_what_attackers_send():
    np.testing.assert_array_equal(sent(SignFlip), [0, 0])
    np.testing.assert_array_equal(sent(SignFlip, scale=2), [-1, -2])
    np.testing.assert_array_equal(sent(Scaled), [11, 22])
    np.testing.assert_array_equal(sent(Backdoor), TRAINED)
    noise = sent(RandomWeights, scale=3) - RECEIVED
    assert np.linalg.norm(noise) == pytest.approx(3 * np.sqrt(5), rel=1e-5)
    np.testing.assert_array_equal(sent(RandomWeights, scale=3) - RECEIVED, noise)


@pytest.mark.parametrize("name", ["received", "trained"])
def test_an_attack_may_send_its_arguments_themselves(name):
    """The client writes BatchNorm's statistics into what is sent; it ended with an error."""

    class Mine(Attack):
        def sent(self, received, trained, generator):
            return received if name == "received" else trained

    received, trained = RECEIVED.copy(), TRAINED.copy()
    made = attacked_state(load_config([]), Mine(None), received, trained, torch.Generator())
    np.testing.assert_array_equal(made, received if name == "received" else trained)
    made[:] = 7
    np.testing.assert_array_equal([received, trained], [RECEIVED, TRAINED])


def test_an_attack_that_goes_wrong_in_a_round_is_named_there(tiny, federate, user_package):
    """Its trial has another seed; clients said a line of ours, not whose mistake it is."""
    user_package({"attacks/mine.py": """
        from orchestra_flwr.federation.attacks import Attack

        class Mine(Attack):
            def sent(self, received, trained, generator):
                return None if generator.initial_seed() else trained
    """})  # fmt: skip
    config = tiny("plugins=[my_package]", "attack=mine", "attack.clients=4", "method=simclr",
                  "federation.rounds=1")  # fmt: skip
    line = r"attack=mine: Mine\.sent must return a ndarray, float32 \(\d+,\), and returned None$"
    with pytest.raises(FederationError, match=line):
        federate(config, evaluate=False)


def test_a_backdoors_images_are_copies_of_one_with_a_patch():
    images = torch.randint(60, 200, (10, 3, 16, 16), dtype=torch.uint8)
    before = images.clone()
    poisoned = Backdoor(Backdoor.Settings(share=0.4, patch=0.25)).poisoned(images)
    assert torch.equal(images, before)
    assert torch.equal(poisoned[:6], images[:6])
    assert len(poisoned) == 10
    for copy in poisoned[6:]:
        changed = (copy != images[0]).all(0)
        assert changed.sum() == 16  # 4 x 4 pixels, in all channels
        assert set(copy[:, changed].unique().tolist()) == {0, 255}
        assert torch.equal(copy[:, ~changed], images[0][:, ~changed])
    assert len({tuple(copy.flatten().tolist()) for copy in poisoned[6:]}) == 4  # other places
    assert torch.equal(stamped(images[:1], 1.0)[0, 0].unique(), torch.tensor([0, 255]))


def test_attackers_are_drawn_from_the_seed():
    clients = [str(number) for number in range(10)]
    config = load_config(["attack=sign_flip", "attack.clients=3"])
    chosen = attackers(config, clients)
    assert len(chosen) == 3 and chosen <= set(clients)
    assert attackers(config, clients) == chosen
    others = [attackers(config.model_copy(update={"seed": s}), clients) for s in range(1, 9)]
    assert any(drawn != chosen for drawn in others)
    assert attackers(load_config([]), clients) == frozenset()


def test_more_attackers_than_clients_are_refused():
    with pytest.raises(ConfigError, match=r"^attack\.clients=11: must be at most .*clients=10$"):
        load_config(["attack=scaled", "attack.clients=11", "federation.clients=10"])


def test_a_real_server_has_no_attackers():
    with pytest.raises(
        ConfigError, match="attack=scaled: must be none, only simulated clients attack"
    ):
        load(ServerConfig, ["attack=scaled"])


@pytest.mark.parametrize(
    "robust",
    [
        "median",
        *(pytest.param(r, marks=pytest.mark.slow) for r in ("trimmed_mean", "geometric_median")),
    ],
)
def test_one_attacker_moves_the_mean_and_no_robust_rule(tiny, tmp_path, federate, robust):
    """The same federation, with and without an attacker that sends noise."""

    def encoder(aggregation, attack):
        config = tiny(
            "federation.clients=5", "federation.rounds=1", "federation.participation=1",
            "federation.max_update=null",
            f"aggregation={aggregation}", *attack,
            f"run_dir={tmp_path / f'{aggregation}{len(attack)}'}",
        )  # fmt: skip
        run = federate(config, evaluate=False)
        weights = [t.double().flatten() for n, t in run.state.items() if n.endswith("weight")]
        return torch.cat(weights)

    attack = ["attack=random_weights", "attack.scale=50"]
    moved = {
        rule: float((encoder(rule, attack) - encoder(rule, [])).norm()) for rule in ("mean", robust)
    }
    assert 0 <= moved[robust] < 0.25 * moved["mean"]


def test_the_mean_is_the_default_and_has_its_bits(tiny, tmp_path, federate):
    states = [
        federate(tiny(*line, f"run_dir={tmp_path / name}"), evaluate=False).state
        for name, line in {"default": [], "mean": ["aggregation=mean", "attack=none"]}.items()
    ]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_the_first_lines_of_a_run_name_its_attackers(tiny, federate, capsys):
    config = tiny("federation.rounds=1", "attack=sign_flip", "attack.clients=2")
    federate(config, evaluate=False, shown="plain")
    clients = ["0", "1", "2", "3"]
    names = ", ".join(sorted(attackers(config, clients)))
    assert f"attack=sign_flip: by 2 clients: {names}\n" in capsys.readouterr().out
