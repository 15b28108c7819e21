"""A server that gets its labelled images (`data.root`), or loses them, when its run is resumed."""

import pytest

from orchestra_flwr.reporting import RunFolder


@pytest.mark.parametrize(
    "rounds",
    [2, pytest.param(3, marks=pytest.mark.slow)],
    ids=["an evaluated round between", "the end alone"],
)
def test_a_trained_encoder_is_not_called_untrained(tiny, tmp_path, federate, rounds):
    """Nobody evaluated the encoder before training, so there is no gain, and no warning."""

    def config(rounds):
        return tiny(f"federation.rounds={rounds}", f"run_dir={tmp_path / 'run'}",
                    "evaluation.every=2")  # fmt: skip

    first = federate(config(rounds - 1), evaluate=False)
    run = federate(config(3), folder=RunFolder.resume(first.folder.path))
    scored = [record["round"] for record in run.records if record.get("scores")]
    assert scored[-1] == 3 and 0 not in scored
    assert 0 < run.summary["knn"] <= 1 and 0 < run.summary["online"]["knn"] <= 1
    assert "untrained" not in run.summary
    assert not any("worse than before" in line for line in run.summary.get("warnings", ()))


def test_scores_of_an_earlier_round_are_not_the_last_encoders(tiny, tmp_path, federate):
    def config(rounds):
        return tiny(f"federation.rounds={rounds}", f"run_dir={tmp_path / 'run'}")

    first = federate(config(1))
    run = federate(config(2), folder=RunFolder.resume(first.folder.path), evaluate=False)
    assert "knn" in first.summary and "knn" not in run.summary
    assert "no images of its own" in run.summary["not_evaluated"]
    assert run.summary["untrained"] == first.summary["untrained"]
