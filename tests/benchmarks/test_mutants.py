import json
import tomllib
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def mutants():
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(CHECKOUT / "benchmarks"))
        import mutants

        yield mutants


@pytest.mark.parametrize(
    ("room", "mutated", "tests"),
    [
        ("privacy", "orchestra_flwr/privacy/*", ["tests/privacy"]),
        (
            "federation/messages",
            "orchestra_flwr/federation/messages/*",
            ["tests/federation/messages"],
        ),
        (
            "clustering/memory.py",
            "orchestra_flwr/clustering/memory.py",
            ["tests/clustering/test_memory.py"],
        ),
    ],
)
def test_a_room_is_changed_under_the_tests_of_its_name(mutants, room, mutated, tests):
    section = tomllib.loads(mutants.settings(room))["tool"]["mutmut"]
    assert section["only_mutate"] == [mutated]
    assert section["pytest_add_cli_args_test_selection"] == tests
    assert all((CHECKOUT / test).exists() for test in tests)


def test_skipped_and_added_tests_exist(mutants):
    named = [
        test for tests in (*mutants.SKIPPED.values(), *mutants.ADDED.values()) for test in tests
    ]
    assert named
    for test in named:
        file, _, function = test.partition("::")
        assert f"def {function}" in (CHECKOUT / file).read_text()


@pytest.mark.slow
def test_the_copy_holds_what_git_tracks(mutants, tmp_path):
    mutants.copy_checkout(tmp_path)
    assert (tmp_path / "pyproject.toml").read_bytes() == (CHECKOUT / "pyproject.toml").read_bytes()
    assert (tmp_path / "conf" / "config.yaml").exists() and not (tmp_path / "outputs").exists()


def test_mutants_are_drawn_from_all_that_there_are(mutants, tmp_path):
    meta = tmp_path / "mutants" / "orchestra_flwr" / "a.py.meta"
    meta.parent.mkdir(parents=True)
    meta.write_text(json.dumps({"exit_code_by_key": {f"a.f__mutmut_{n}": None for n in range(9)}}))
    names = mutants.known_mutants(tmp_path)
    assert len(names) == 9
    sample = mutants.drawn(names, 3, seed=0)
    assert mutants.drawn(names, 5, seed=0)[:3] == sample != mutants.drawn(names, 3, seed=1)


def test_the_score_counts_what_was_run(mutants):
    counts = {"killed": 17, "timeout": 1, "survived": 1, "no_tests": 1, "total": 40}
    shown = mutants.summary(counts)
    assert shown.startswith("18 of 20 changes noticed (90.0%, 1 of them by the time limit")
    assert shown.endswith("); 40 are possible")
    counts["timeout"] = 0
    assert mutants.summary(counts) == "17 of 19 changes noticed (89.5%); 40 are possible"
    assert mutants.summary({"total": 3}) == "0 of 0 changes noticed (none); 3 are possible"
