"""From a simulation to use, on real photographs: embed, look at the page in a browser, label."""

import csv
import json
import re
import zipfile
from pathlib import Path

import pytest

from orchestra_flwr.cli import embed_main, label_main, main

REPOSITORY = Path(__file__).resolve().parents[2]
PHOTOS = next(
    (p for folder in REPOSITORY.parents if (p := folder / "shared/data/cifar10-jpeg.zip").exists()),
    Path("/nowhere"),
)
EACH = 200  # test images of each of the ten classes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not PHOTOS.exists(), reason="shared/data/cifar10-jpeg.zip is not there"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The encoder of a small simulation, trained for a minute."""
    folder = tmp_path_factory.mktemp("simulation") / "run"
    code = main([
        "data=image_folder", f"data.root={PHOTOS}", "data.train_limit=1500",
        "data.test_limit=500", "method=simclr", "engine=inline", "model.width=16",
        "federation.clients=2", "federation.participation=1", "federation.rounds=3",
        "partition=iid", "training.local_epochs=2", "training.batch_size=64", "training.threads=2",
        f"run_dir={folder}", "logging.progress=plain", "device=cpu",
    ])  # fmt: skip
    assert code == 0
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """2,000 test photographs in class folders, one of them twice, and one broken file."""
    folder = tmp_path_factory.mktemp("images") / "photographs"
    with zipfile.ZipFile(PHOTOS) as archive:
        for name in archive.namelist():
            path = Path(name)
            if path.parts[0] == "test" and path.suffix == ".jpg" and int(path.stem) < EACH:
                file = folder.joinpath(*path.parts[1:])
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(archive.read(name))
    (folder / "horse" / "copy.jpg").write_bytes((folder / "horse" / "0003.jpg").read_bytes())
    (folder / "ship" / "broken.jpg").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def results(run, photos):
    assert embed_main([f"run={run}", f"images={photos}", "device=cpu"]) == 0
    return run / "embeddings" / photos.name


def test_the_page_of_2000_photographs_takes_3_megabytes_at_most(results):
    assert (results / "embeddings.html").stat().st_size < 3_100_000
    described = json.loads((results / "embeddings.json").read_text())
    assert described["count"] == 10 * EACH + 1
    assert described["broken"] == [["ship/broken.jpg", "not an image"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_opens_and_a_click_shows_neighbours(results, opened_page, scheme):
    page = opened_page(results / "embeddings.html", scheme)
    page.get_by_role("button", name="Pictures").click()
    page.fill("#search", "ship/0001")
    page.keyboard.press("Enter")
    page.fill("#search", "")
    assert page.locator("#chosen .path").inner_text() == "ship/0001.jpg"
    assert page.locator("#chosen .tile").count() == 12
    page.click("#tab-clusters")
    assert page.locator("#view-clusters article").count() == 12
    page.click("#tab-duplicates")
    groups = [
        {tile.get_attribute("title") for tile in group.locator(".tile").all()}
        for group in page.locator("#view-duplicates article").all()
    ]
    assert any({"horse/0003.jpg", "horse/copy.jpg"} <= group for group in groups)
    page.click("#tab-outliers")
    assert 0 < page.locator("#view-outliers .tile").count() < 100  # of some hundred photographs


def test_twenty_labels_a_class_label_the_rest(run, photos, results, capsys, tmp_path):
    rows = [
        f"{folder.name}/{file.name},{folder.name}"
        for folder in sorted(photos.iterdir())
        for file in sorted(folder.glob("0*.jpg"))[:: EACH // 20]
    ]
    table = tmp_path / "labels.csv"
    table.write_text("\n".join(["path,label", *rows]))
    capsys.readouterr()
    assert label_main([f"run={run}", f"images={photos}", f"labels={table}", "device=cpu"]) == 0
    text = capsys.readouterr().out
    predicted = [*csv.DictReader((results / "predictions.csv").open())]
    assert len(predicted) == 10 * EACH + 1 - 200
    right = [row["path"].split("/")[0] == row["label"] for row in predicted]
    accuracy = sum(right) / len(right)
    print(text, f"accuracy on the rest: {accuracy:.3f}")
    low, high = map(float, re.search(r"interval (\S+) to (\S+) %", text).groups())
    assert accuracy > 0.2  # chance: .1
    assert low - 3 <= 100 * accuracy <= high + 8  # of a classifier with a fifth fewer labels
