import sys

import pytest

from orchestra_flwr.config import ConfigError
from orchestra_flwr.reporting import TensorboardLog


def test_numbers_are_read_back(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    log = TensorboardLog(tmp_path)
    for round in (1, 2):
        log.add(
            round,
            {
                "round": round,
                "seconds": 4.5,
                "clients": {"ok": 9 + round, "dropped": [{"client": 4, "reason": "late"}]},
                "loss": {"total": 1 / round, "broken": None},
                "scores": {"target": {"knn": 0.25 * round}},
                "note": "text",
                "flag": True,
            },
        )
    log.close()
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    tags = {"seconds", "clients/ok", "loss/total", "scores/target/knn"}
    assert set(events.Tags()["scalars"]) == tags
    knn = [(e.step, e.value) for e in events.Scalars("scores/target/knn")]
    assert knn == [(1, 0.25), (2, 0.5)]


def test_without_tensorboard_the_error_says_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"pip install 'orchestra-flwr\[tensorboard\]'") as caught:
        TensorboardLog(tmp_path)
    assert "\n" not in str(caught.value)
