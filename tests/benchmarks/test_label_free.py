import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def label_free(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import label_free

    return label_free


@pytest.fixture
def point(label_free):
    return lambda run, round_, **scores: label_free.Point(run, "simclr", round_, scores)


def test_a_correlation_is_of_ranks(label_free, point):
    correlation = label_free.correlation
    points = [point("a", r, lidar=r**3, linear=0.1 * r, knn=-r) for r in range(4)]
    assert correlation(points, "lidar", "linear") == pytest.approx(1)
    assert correlation(points, "lidar", "knn") == pytest.approx(-1)
    assert correlation(points, "score", "knn") is correlation(points[:2], "lidar", "knn") is None
    same = [point("a", r, lidar=1.0, linear=0.1 * r) for r in range(4)]
    assert correlation(same, "lidar", "linear") is None


def test_groups_are_averaged(label_free, point):
    mean_correlation = label_free.mean_correlation
    up = [point("a", r, lidar=float(r), linear=0.1 * r) for r in range(3)]
    down = [point("b", r, lidar=float(-r), linear=0.1 * r) for r in range(3)]
    both = [*up, *down]
    assert mean_correlation(both, "run", "lidar", "linear") == pytest.approx((0, 2))
    assert mean_correlation(up, "method", "lidar", "linear") == pytest.approx((1, 1))
    assert label_free.regret(both, "lidar") == pytest.approx((0 + 20) / 2)


def test_runs_are_read_from_their_folders(label_free, tmp_path, capsys):
    runs = []
    for number in range(4):
        run = tmp_path / f"simclr-digits-{number}"
        run.mkdir()
        (run / "summary.json").write_text('{"backbone": "online"}')
        records = [
            {
                "round": r,
                "scores": {"online": {"knn": 0.5, "linear": r + number / 10, "lidar": float(r)}},
                "unsupervised": {"lidar": -float(r + number)},
            }
            for r in range(4)
        ] + [{"round": 4}]
        (run / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
        runs.append(str(run))
    label_free.main([*runs, str(tmp_path)])
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "4 runs, 16 encoders"
    assert "| lidar | probe | - | - | 1.00 (4) | 1.00 (4) | 0.0 |" in lines
    assert (
        "| clients' lidar | probe | -1.00 (4) | -1.00 (1) | -1.00 (4) | -1.00 (4) | 200.0 |"
        in lines
    )
    with pytest.raises(SystemExit):
        label_free.main([str(tmp_path)])
