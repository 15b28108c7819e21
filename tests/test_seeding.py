from dataclasses import replace

import pytest
import torch

from orchestra_flwr.seeding import ClientSeed, derive, numpy_generator, seeded, torch_generator


def test_every_part_of_the_path_matters_and_nothing_else():
    paths = [(0, "a", 1, 2), (1, "a", 1, 2), (0, "b", 1, 2), (0, "a", 2, 1), (0, "a", 12), (0, "a")]
    assert len({derive(*p) for p in paths}) == len(paths)
    assert all(0 <= derive(*p) < 2**63 for p in paths)


def test_known_value():
    # Changing how seeds are derived changes every published figure: do it knowingly.
    assert derive(0, "init") == 7797302695267191734


def test_generators_repeat():
    assert numpy_generator(3, "cohort", 1).random() == numpy_generator(3, "cohort", 1).random()
    draw = [torch.rand(3, generator=torch_generator(3, "x", 1)) for _ in range(2)]
    assert torch.equal(*draw)


def test_purposes_of_a_client_are_independent():
    seed = ClientSeed(0, 1, 2)
    a, b = (torch.rand(4, generator=seed.generator(p)) for p in ("shuffle", "augment"))
    assert not torch.equal(a, b)


def test_noise_of_a_simulation_is_another_in_every_round_and_the_same_when_it_is_repeated():
    """Two releases with one noise would show their difference without any."""
    seed = ClientSeed(0, 1, "a")
    others = [replace(seed, **change) for change in (
        {"seed": 1}, {"round": 2}, {"round": 11}, {"client": "b"}, {"stage": 1})]  # fmt: skip
    keys = [client_seed.noise_key() for client_seed in (seed, *others)]
    assert len(set(keys)) == len(keys) and {len(key) for key in keys} == {32}
    assert replace(seed).noise_key() == keys[0]


def test_noise_of_a_real_client_is_never_repeated():
    seed = ClientSeed(0, 1, "a", secret_noise=True)
    first, second = seed.noise_key(), seed.noise_key()
    assert len(first) == 32 and first != second


def test_a_seeded_block_draws_as_after_manual_seed_and_moves_nothing():
    torch.manual_seed(3)
    expected = torch.rand(4)
    before = torch.get_rng_state()
    with seeded(3):
        assert torch.equal(torch.rand(4), expected)
    with pytest.raises(ValueError, match="inside"), seeded(4):
        raise ValueError("inside")
    assert torch.equal(torch.get_rng_state(), before)
