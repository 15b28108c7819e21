from io import StringIO
from pathlib import Path

from rich.console import Console

from orchestra_flwr.reporting.summary_table import print_summary, scores_table

SUMMARY = {
    "knn": 0.75,
    "linear": 0.8,
    "online": {"knn": 0.7, "linear": 0.4},
    "untrained": {"knn": 0.5, "linear": 0.8, "online": {"knn": 0.5, "linear": 0.45}},
    "rounds": 100,
    "seconds": 7500.0,
    "bytes_up": 4_500_000_000,
    "bytes_down": 12_000,
    "k_anonymity": 16,
}


def printed(terminal: bool, *what) -> str:
    file = StringIO()
    colours = "standard" if terminal else "auto"
    console = Console(file=file, force_terminal=terminal, width=80, color_system=colours)
    if isinstance(what[0], dict):
        print_summary(*what, console=console)
    else:
        console.print(*what)
    return file.getvalue()


def test_plain_summary():
    folder = Path("outputs") / ("very-long-name" * 10) / "[red]2026:on:01"
    text = printed(False, SUMMARY, folder)
    assert text.isascii()
    assert "\x1b" not in text
    cells = [[c.strip() for c in li.strip().strip("|").split("|")] for li in text.splitlines()]
    assert ["score", "before training", "trained", "gain"] in cells
    assert ["kNN, target", "50.0 %", "75.0 %", "+25.0"] in cells
    assert ["kNN, online", "50.0 %", "70.0 %", "+20.0"] in cells
    assert ["linear probe, target", "80.0 %", "80.0 %", "+0.0"] in cells
    assert ["linear probe, online", "45.0 %", "40.0 %", "-5.0"] in cells
    assert "100 rounds, 2 h 05 min, 4.5 GB up, 12.0 kB down" in text
    assert "16 different images or more" in text
    assert text.splitlines()[-1] == f"run folder: {folder}"


def test_clients_own_models_are_a_line_and_no_backbone():
    scores = {"mean": 0.5, "worst_tenth": 0.25, "std": 0.1, "clients": 5}
    text = printed(False, {**SUMMARY, "clients_own": {"linear": scores}}, "here")
    own = "clients' own models on their own classes: linear probe 50.0 %"
    assert f"{own}, worst client 25.0 %" in text
    many = {"clients_own": {"linear": {**scores, "clients": 20}}}
    assert f"{own}, worst tenth 25.0 %" in printed(False, {**SUMMARY, **many}, "here")
    assert "linear probe, clients_own" not in text


def test_without_scores_what_to_do_next_is_said():
    summary = {"rounds": 3, "backbone": "target", "not_evaluated": "there are no labels"}
    text = printed(False, summary, "my runs/one")
    assert "|" not in text
    assert "not evaluated with labels: there are no labels." in text
    assert "orchestra-evaluate run='my runs/one' data=image_folder" in text
    assert "orchestra-embed run='my runs/one' images=" in text
    assert "orchestra-compare after='my runs/one' images=" in text
    assert text.splitlines()[-1] == "run folder: my runs/one"


def test_scores_without_labels_have_rows_of_their_own():
    free = {"effective_rank": 40.0, "score": 0.41}
    before = {name: value / 2 for name, value in free.items()}
    summary = {"backbone": "online", "not_evaluated": "there are no labels", **free,
               "unsupervised": free, "untrained": {"unsupervised": before}}  # fmt: skip
    rows = [[c.strip() for c in line.strip("| ").split("|")]
            for line in printed(False, summary, "here").splitlines() if "|" in line]  # fmt: skip
    assert rows[2] == ["effective rank", "-", "40", "-"]
    assert rows[3] == ["score (align + 0.2 unif)", "-", "0.41", "-"]
    assert rows[4] == ["effective rank, clients", "20", "40", "+20"]
    assert rows[5] == ["score (align + 0.2 unif), clients", "0.205", "0.41", "+0.205"]
    assert not any("kNN" in row[0] for row in rows)
    better = "more is better in every row"
    assert better in printed(False, summary, "here").splitlines()
    assert better not in printed(False, SUMMARY, "here")


def test_scores_with_and_without_labels_fit_a_terminal():
    scores = {"linear": 0.8, "linear_standard_error": 0.012, "unsupervised": {"score": 0.412}}
    summary = {**scores, "untrained": {"linear": 0.7, "unsupervised": {"score": 0.207}}}
    assert "| score (align + 0.2 unif), clients |" in printed(False, summary, "here")


def test_the_kept_round_has_its_score_and_that_of_the_start():
    def line(round_, by, **summary):
        about = {"kept_round": round_, "kept_by": by, "rounds": 24, **summary}
        return next(li for li in printed(False, about, "here").splitlines() if "kept: " in li)

    by_clients = {"unsupervised": {"score": 0.412}, "untrained": {"unsupervised": {"score": 0.3}}}
    for scores in ({"score": 0.412, "untrained": {"score": 0.3}}, by_clients):
        after = "kept: the encoder after round 20 of 24, the best by score"
        assert line(20, "score", **scores) == f"{after} (0.412, before training 0.3)"
    assert line(20, "linear", linear=0.5).endswith("the best by linear (50.0 %)")
    assert line(20, "knn").endswith("the best by knn")
    start = "kept: the encoder before training; by score no round's was better"
    assert line(0, "score", **by_clients) == f"{start} than its 0.412"
    assert line(0, "score") == start


def test_one_backbone_has_two_rows_under_its_own_name():
    scores = {"knn": 0.5, "linear": 0.75, "feature_std": 0.9, "backbone": "online"}
    text = printed(False, {**scores, "untrained": {"knn": 0.25, "linear": 0.5}}, "here")
    rows = [li.split("|")[1].strip() for li in text.splitlines() if "%" in li]
    assert rows == ["kNN, online", "linear probe, online"]
    assert not any(li.split("|")[2].strip() == "-" for li in text.splitlines() if "%" in li)


def test_the_kept_backbone_stands_first():
    scores = {"knn": 0.5, "linear": 0.75, "backbone": "online", "target": {"knn": 0.4}}
    text = printed(False, scores_table({}, scores))
    rows = [li.split("|")[1].strip() for li in text.splitlines() if "%" in li]
    assert rows == ["kNN, online", "kNN, target", "linear probe, online"]


def test_gains_are_green_and_losses_red_on_a_terminal():
    text = printed(True, scores_table(SUMMARY["untrained"], SUMMARY))
    assert "\x1b[32m+25.0" in text
    assert "\x1b[31m -5.0" in text
    assert "+0.0" in text
    assert text.count("\x1b[32m") == 2


def test_standard_errors_stand_beside_the_accuracies():
    errors = {"linear_standard_error": 0.0125, "untrained": {"linear": 0.8}}
    text = printed(False, scores_table(errors["untrained"], {**SUMMARY, **errors}))
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    assert ["", "linear probe, target", "80.0 %", "80.0 +- 1.2 %", "+0.0", ""] in rows


def test_other_statistics_of_the_encoder_before_training_are_a_line_if_they_matter():
    for kind, says in (
        ("initial", "BatchNorm's initial statistics, which are of no images (no baseline)"),
        ("loaded", "BatchNorm's statistics as loaded"),
        ("recalibrated", "BatchNorm's statistics of the server's images"),
    ):
        for other, shown in ((0.45, True), (0.49, False)):
            untrained = {"knn": 0.5, f"{kind}_statistics": {"knn": other}}
            text = printed(False, {"knn": 0.6, "untrained": untrained}, "here")
            assert (f"before training, with {says}: kNN {100 * other:.1f} %" in text) == shown


def test_warnings_are_printed_as_lines():
    text = printed(False, {**SUMMARY, "warnings": ["it is [worse]"]}, "here")
    assert "WARNING: it is [worse]" in text.splitlines()


def test_missing_numbers():
    text = printed(False, {"knn": 0.5, "rounds": 1}, "here")
    assert text.count("50.0 %") == 1
    assert "1 rounds" not in text
    assert "1 round" in text
    assert text.splitlines()[-1] == "run folder: here"


def test_what_differential_privacy_the_encoders_have():
    def lines(entry):
        return printed(False, {"privacy": {"updates": entry}}, "here")

    updates = {"epsilon": 3.14159, "delta": 1e-3, "clip": 1.0, "noise_multiplier": 2.0}
    assert "averaged encoders: epsilon 3.14 at delta 0.001 for a whole client" in lines(updates)
    image = lines({**updates, "protects": "an image"})
    assert "averaged encoders: epsilon 3.14 at delta 0.001 for an image" in image
    assert "epsilon infinite at delta" in lines({**updates, "epsilon": None})
    assert "averaged encoders: not covered by differential privacy" in lines(
        "not covered by differential privacy"
    )


def test_shared_features_are_shown_in_red():
    shared = {**SUMMARY, "k_anonymity": 1, "not_private": "features left"}
    assert "NOT PRIVATE: features left" in printed(False, shared, "x")
    assert "centroid" not in printed(False, shared, "x")
    assert "\x1b[1;31mNOT PRIVATE" in printed(True, shared, "x")


def test_what_clients_released_has_its_own_name(capsys, tmp_path):
    ledger = {"epsilon": 3.0, "delta": 1e-3, "epsilon_each": 1.0, "releases": {"a": 2, "b": 1}}
    for released, label in (({}, "centroids"), ({"released": "prototypes"}, "prototypes")):
        print_summary({**SUMMARY, **released, "privacy": {label: ledger}}, tmp_path)
        shown = " ".join(capsys.readouterr().out.split())
        assert f"all {label} that left a client stand for 16 different images or more" in shown
        assert f"{label}: epsilon 3 at delta 0.001 for an image of the client" in shown
