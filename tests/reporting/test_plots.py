import itertools
import os

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from orchestra_flwr.reporting.plots import curves_figure, partition_figure, save_png


def plot_curves(metrics, path, name=""):
    save_png(curves_figure(metrics, name), path)


def plot_partition(counts, class_names, path, **options):
    save_png(partition_figure(counts, class_names, **options), path)


def record(round, scores=None):
    return {
        "round": round,
        "seconds": 4.0 + round % 2,
        "loss": {"cluster": 2 / round, "rotation": 1 / round, "total": 3 / round},
        "bytes_up": 45_000_000,
        "bytes_down": 46_000_000,
    } | ({"scores": scores} if scores else {})


def scores(value):
    return {
        b: {"knn": value, "linear": value + 0.1, "feature_std": 0.9} for b in ("target", "online")
    }


UNTRAINED = {"round": 0, "scores": scores(0.3)}
CLUSTERING = {"round": 0, "seconds": 1.0, "bytes_up": 1000, "bytes_down": 45_000_000}


@pytest.fixture
def figures(monkeypatch):
    """The figures that were saved, to look into them."""
    saved, savefig = [], Figure.savefig

    def keep(self, *arguments, **options):
        saved.append(self)
        return savefig(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return saved


def lines(panel):
    return {
        line.get_label(): (list(line.get_xdata()), [float(y) for y in line.get_ydata()])
        for line in panel.lines
    }


def test_curves_show_the_records(tmp_path, figures):
    rounds = [record(r, scores(0.3 + 0.1 * r) if r % 2 == 0 else None) for r in range(1, 6)]
    plot_curves([UNTRAINED, CLUSTERING, *rounds], tmp_path / "curves.png")
    image = matplotlib.image.imread(tmp_path / "curves.png")
    assert min(image.shape[:2]) > 600
    loss, accuracy, sent, received, seconds = figures[0].axes
    assert lines(loss)["rotation"] == ([1, 2, 3, 4, 5], [1 / r for r in range(1, 6)])
    assert list(lines(loss)) == ["cluster", "rotation", "total"]
    assert lines(accuracy)["kNN, target"] == ([2, 4], pytest.approx([50, 70]))
    assert lines(accuracy)["linear probe, online"] == ([2, 4], pytest.approx([60, 80]))
    assert lines(accuracy)["kNN, before training"][1] == pytest.approx([30, 30])
    assert lines(accuracy)["linear probe, before training"][1] == pytest.approx([40, 40])
    of_rounds = [[y for _, y in lines(panel).values()] for panel in (sent, received, seconds)]
    assert of_rounds == [[pytest.approx([45] * 5)], [pytest.approx([46] * 5)], [[5, 4, 5, 4, 5]]]


@pytest.mark.parametrize(
    "metrics",
    [
        [],
        [UNTRAINED],
        [CLUSTERING],
        [record(1)],
        [UNTRAINED, record(1, scores(0.4))],
        [record(1) | {"loss": {"total": None}}, record(2) | {"loss": None}],
        [record(1) | {"loss": {f"part {i}": 1.0 for i in range(9)}}],
    ],
    ids=["nothing", "untrained", "clustering", "no scores", "one", "null", "many parts"],
)
def test_curves_cope_with_what_is_missing(metrics, tmp_path, recwarn):
    plot_curves(metrics, tmp_path / "curves.png")
    assert matplotlib.image.imread(tmp_path / "curves.png").std() > 0
    assert not recwarn.list


def titles(figure):
    return [panel.get_title(loc="left") for panel in figure.axes]


def test_scores_that_nobody_measured_have_no_panel(tmp_path, figures):
    plot_curves([record(1)], tmp_path / "curves.png")
    assert [title.split(" ")[0] for title in titles(figures[0])] == [
        "loss",
        "sent",
        "received",
        "time,",
    ]


def test_no_panel_is_empty(tmp_path, figures):
    unmeasured = {"round": 1, "loss": {"total": None}, "bytes_up": 5}
    for metrics in ([UNTRAINED], [unmeasured], []):
        plot_curves(metrics, tmp_path / "curves.png")
    first = [title.split(" ")[0] for figure in figures for title in titles(figure)]
    assert first == ["accuracy", "sent"]
    assert [text.get_text() for text in figures[2].texts] == ["no round has ended"]


def test_precision_takes_the_place_of_accuracies(tmp_path, figures):
    several = {"target": {"map": 0.25}}
    plot_curves([UNTRAINED | {"scores": several}, record(1, several)], tmp_path / "curves.png")
    panel = figures[0].axes[1]
    assert panel.get_title(loc="left") == "precision (mAP) on the test images, %"
    assert set(lines(panel)) == {"mAP, target", "mAP, before training"}


def test_scores_without_labels_are_drawn_of_server_and_clients(tmp_path, figures):
    def with_ranks(round, rank):
        free = {"effective_rank": rank, "score": rank / 100}
        of_clients = {name: 3 * value for name, value in free.items()}
        measured = {"scores": {"online": free}, "unsupervised": of_clients}
        return record(round or 1) | measured | {"round": round}

    plot_curves([with_ranks(r, 10 + r) for r in range(3)], tmp_path / "curves.png")
    _, ranks, score, *_ = figures[0].axes
    drawn = lines(ranks)
    assert drawn["effective rank, server"] == ([1, 2], [11, 12])
    assert drawn["effective rank, clients"] == ([1, 2], [33, 36])
    assert sorted(y[0] for x, y in drawn.values() if len(set(y)) == 1) == [10, 30]
    assert lines(score)["score, clients"] == ([1, 2], pytest.approx([0.33, 0.36]))
    assert not any("accuracy" in title for title in titles(figures[0]))


def test_no_legend_hides_a_point(tmp_path, figures):
    """Nor does one reach into its neighbour."""
    terms = ("cluster", "rotation", "verification", "alignment", "proximal")
    many = record(1, scores(0.4)) | {"loss": dict.fromkeys((*terms, "total"), 1.0)}
    plot_curves([UNTRAINED, many], tmp_path / "curves.png")
    panels = [panel for panel in figures[0].axes if panel.get_legend()]
    legends = [panel.get_legend().get_window_extent() for panel in panels]
    assert len(legends) == 2
    for legend, other in itertools.product(legends, figures[0].axes):
        assert not legend.overlaps(other.get_window_extent())
    assert not any(one.overlaps(two) for one, two in itertools.combinations(legends, 2))


def test_curves_of_a_method_with_one_backbone(tmp_path, figures):
    only = {"online": {"knn": 0.5, "linear": 0.6, "feature_std": 0.9}}
    plot_curves([{"round": 0, "scores": only}, record(1, only)], tmp_path / "curves.png")
    accuracy = lines(figures[0].axes[1])
    assert set(accuracy) == {
        f"{score}, {which}"
        for score in ("kNN", "linear probe")
        for which in ("online", "before training")
    }


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (10, 10), (400, 100)])
def test_partition_shows_every_count(clients, classes, tmp_path, figures):
    counts = np.random.default_rng(0).poisson(2, (clients, classes))
    plot_partition(counts, [f"class {i}" for i in range(classes)], tmp_path / "split.png")
    height, width = matplotlib.image.imread(tmp_path / "split.png").shape[:2]
    assert height < 1300
    assert width < 2200
    sizes, heat = figures[0].axes[:2]
    assert [bar.get_height() for bar in sizes.patches] == counts.sum(1).tolist()
    shown = heat.images[0].get_array()
    assert shown.filled(0).tolist() == counts.T.tolist()
    assert shown.mask.sum() == (counts == 0).sum()
    if clients == 10:
        assert len(heat.texts) == (counts > 0).sum()
        assert [t.get_text() for t in heat.get_yticklabels()] == [f"class {i}" for i in range(10)]


def test_an_empty_partition_and_long_names(tmp_path, recwarn):
    plot_partition(np.zeros((3, 2), dtype=int), ["x" * 200, "y"], tmp_path / "split.png")
    assert not recwarn.list


def test_pictures_name_their_run(tmp_path, figures):
    plot_curves([record(1)], tmp_path / "curves.png", "digits_$1/today")
    plot_partition(np.eye(3, dtype=int), ["a", "b", "c"], tmp_path / "split.png", name="run")
    assert [figure.get_suptitle() for figure in figures] == ["digits_$1/today", "run"]


def test_a_split_says_what_its_axes_and_shades_are(tmp_path, figures):
    plot_partition(np.eye(3, dtype=int), ["a", "b", "c"], tmp_path / "split.png")
    sizes, heat, shades = figures[0].axes
    assert [sizes.get_ylabel(), heat.get_xlabel(), heat.get_ylabel()] == [
        "images",
        "client",
        "class",
    ]
    assert shades.get_ylabel() == "images of the class (white: none)"


def test_clients_with_names_are_named():
    for clients, shown in ((["mon", "tue $1"], ["mon", "tue $1"]), (["0", "1"], None)):
        figure = partition_figure(np.eye(2, dtype=int), ["a", "b"], clients=clients)
        ticks = [tick.get_text() for tick in figure.axes[1].get_xticklabels()]
        assert shown is None or ticks == shown


def test_images_without_labels_have_bars_alone(tmp_path, figures):
    plot_partition(np.array([[3], [5]]), None, tmp_path / "split.png")
    (sizes,) = figures[0].axes
    assert [bar.get_height() for bar in sizes.patches] == [3, 5]
    assert sizes.get_title(loc="left") == "8 images without labels on 2 clients"
    assert sizes.get_xlabel() == "client"


def test_a_notebook_shows_a_figure():
    assert curves_figure([record(1)])._repr_png_().startswith(b"\x89PNG")


def test_the_emd_stands_below_the_picture(tmp_path, figures):
    for emd in (None, 1.2345):
        plot_partition(np.eye(3, dtype=int), ["a", "b", "c"], tmp_path / "split.png", emd=emd)
    plain, with_emd = (figure.axes[1].get_xlabel() for figure in figures)
    assert plain == "client"
    assert with_emd.startswith("client\nEMD 1.23 (")
    text = figures[1].axes[1].xaxis.label.get_window_extent()
    assert text.x0 > 0 and text.x1 < figures[1].bbox.width


def test_counts_must_fit_the_names(tmp_path):
    with pytest.raises(ValueError, match="do not fit 2 class names"):
        plot_partition(np.ones((3, 4), dtype=int), ["a", "b"], tmp_path / "split.png")
    assert not (tmp_path / "split.png").exists()


def test_any_name_of_a_class_can_be_drawn(tmp_path, recwarn):
    names = ["$x_1$", "$", r"$\frac{$", "\x1b[31m", os.fsdecode(b"\xff"), "写真", "a\nb"]
    plot_partition(np.ones((2, len(names)), int), names, tmp_path / "partition.png")
    assert (tmp_path / "partition.png").stat().st_size > 1000
    assert partition_figure(np.ones((2, len(names)), int), names)._repr_png_()
    assert not recwarn.list  # the font has no 写
