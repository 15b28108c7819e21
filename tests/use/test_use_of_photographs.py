"""From a simulation to use, on real photographs: embed, look at the page in a browser, label."""

import csv
import json
import os
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
CHROMIUM = Path("/usr/bin/chromium")
PICTURES = REPOSITORY / "docs" / "pictures"  # written with WRITE_PICTURES=1
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
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


@pytest.fixture(params=["light", "dark"])
def page(request, results):
    """The page in a browser; at the end there must have been no error and no request."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not there")
    errors, requests = [], []
    with api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme=request.param)
        page.set_default_timeout(120_000)
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto((results / "embeddings.html").as_uri())
        page.wait_for_selector("body[data-ready]")
        page.scheme = request.param
        yield page
        browser.close()
    assert errors == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


def picture(page, name):
    page.wait_for_timeout(500)
    if os.environ.get("WRITE_PICTURES"):
        PICTURES.mkdir(exist_ok=True)
        page.screenshot(path=PICTURES / f"embeddings-{name}-{page.scheme}.png")


def test_a_click_on_the_map_shows_the_nearest_neighbours(page):
    box = page.locator("#map").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    chosen = page.locator("#chosen .path")
    assert chosen.count() == 0
    for step in range(0, 200, 10):  # from the middle outwards, until there is an image
        x, y = box["x"] + box["width"] / 2 + step, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        if page.locator("#hover").is_visible():
            break
    name = page.locator("#hover p").first.inner_text()
    page.mouse.click(x, y)
    assert chosen.inner_text() == name
    tiles = page.locator("#chosen .tile")
    assert tiles.count() == 12
    cosines = [float(text) for text in page.locator("#chosen .tile span").all_inner_texts()]
    assert cosines == sorted(cosines, reverse=True) and cosines[0] <= 1
    following = tiles.nth(2).get_attribute("title")
    tiles.nth(2).click()
    assert chosen.inner_text() == following
    page.get_by_role("button", name="Pictures").click()
    picture(page, "map")


def test_it_is_used_by_keys_alone(page):
    page.focus("#map")
    page.keyboard.press("ArrowRight")
    first = page.locator("#chosen .path").inner_text()
    page.keyboard.press("ArrowRight")
    assert page.locator("#chosen .path").inner_text() != first
    page.keyboard.press("Escape")
    assert page.locator("#chosen .path").count() == 0
    page.focus("#tab-map")
    page.keyboard.press("ArrowRight")
    assert page.locator("#view-clusters").is_visible() and not page.locator("#map").is_visible()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('header, main') !== null")


def test_clusters_copies_outliers_and_unreadable_files(page):
    page.click("#tab-clusters")
    assert page.locator("#view-clusters article").count() == 12
    picture(page, "clusters")
    page.click("#tab-duplicates")
    groups = page.locator("#view-duplicates article")
    titles = [
        {t.get_attribute("title") for t in group.locator(".tile").all()} for group in groups.all()
    ]
    assert any({"horse/0003.jpg", "horse/copy.jpg"} <= group for group in titles)
    page.locator("#view-duplicates .tile").first.click()
    assert page.locator("#chosen .path").is_visible()
    page.click("#tab-outliers")
    assert page.locator("#view-outliers .tile").count() == 48
    page.click("#tab-unreadable")
    assert "ship/broken.jpg" in page.locator("#view-unreadable").inner_text()


def test_a_search_finds_images(page):
    page.fill("#search", "copy")
    assert page.locator("#found").inner_text() == "1 image"
    page.keyboard.press("Enter")
    assert page.locator("#chosen .path").inner_text() == "horse/copy.jpg"
    assert page.locator("#chosen .tile").first.get_attribute("title") == "horse/0003.jpg"


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
