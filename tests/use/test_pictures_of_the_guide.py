"""The guides' pictures of the page: the demo's digits through the demo's encoder, in a browser.

`WRITE_PICTURES=1` writes them anew.
"""

import os
from pathlib import Path

import pytest
from PIL import Image

from orchestra_flwr.cli import embed_main, main
from orchestra_flwr.config import load_config
from orchestra_flwr.data import load_dataset

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Of 2,000 training digits in class folders."""
    folder = tmp_path_factory.mktemp("guide")
    run, digits = folder / "run", folder / "digits"
    assert main([f"run_dir={run}", "engine=inline", "device=cpu", "logging.progress=plain"]) == 0
    train = load_dataset(load_config().data).train
    for number, (image, label) in enumerate(zip(train.images, train.labels, strict=True)):
        if number < 2000:
            file = digits / str(int(label)) / f"{number:04d}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0].numpy()).save(file)
    assert embed_main([f"run={run}", f"images={digits}", "device=cpu"]) == 0
    return run / "embeddings" / "digits"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures(results, opened_page, scheme):
    name = next(file.name for file in (results.parents[2] / "digits" / "7").iterdir())
    page = opened_page(results / "embeddings.html", scheme)
    page.get_by_role("button", name="Pictures").click()
    page.fill("#search", f"7/{name}")
    page.keyboard.press("Enter")
    page.fill("#search", "")
    neighbours = [tile.get_attribute("title") for tile in page.locator("#chosen .tile").all()]
    sevens = [title for title in neighbours if title and title.startswith("7/")]
    assert len(neighbours) == 12 and len(sevens) >= 8  # the encoder was trained
    picture(page, f"map-{scheme}")
    page.click("#tab-clusters")
    assert page.locator("#view-clusters article").count() == 12
    picture(page, f"clusters-{scheme}")


def picture(page, name):
    page.wait_for_timeout(500)
    file = PICTURES / f"embeddings-{name}.jpg"
    if os.environ.get("WRITE_PICTURES") and file.exists():  # those that the guides show
        page.screenshot(path=file, type="jpeg", quality=85)
