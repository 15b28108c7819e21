"""The page as a person uses it, with pointer and keys, in headless Chromium."""

import re

import pytest
import torch

from orchestra_flwr.data.image_files.archive import Archive
from orchestra_flwr.use.embedding_files import Embeddings
from orchestra_flwr.use.image_embeddings import EmbeddedImages
from orchestra_flwr.use.page import write_page
from orchestra_flwr.use.similar import nearest_neighbours, outliers
from orchestra_flwr.use.use_config import PageConfig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def vectors():
    """Of 36 images; the 13th and the 30th are the same."""
    vectors = torch.randn(36, 6)
    vectors[29] = vectors[12]
    return vectors


@pytest.fixture(params=["inside", "beside"])
def page(request, photos, tmp_path, vectors, opened_page):
    (photos / "blue").rename(photos / ("blue" * 40))  # no name leaves its card
    with Archive(photos) as archive:
        paths = tuple(file.name for file in archive.files())
        broken = ((f"<b>broken</b>{'x' * 200}.jpg", "not an image"),)
        embeddings = Embeddings(paths, vectors, broken)
        embedded = EmbeddedImages(archive, embeddings, {p: p for p in paths}, tmp_path)
        config = PageConfig(write=True, pictures=request.param, limit=100, clusters=3, seed=0)
        return opened_page(write_page(tmp_path, embedded, config, "photos")[0])


def test_pointer_keys_and_all_views(page, photos, vectors):
    """One test: starting the browser takes longer than all of it."""
    a_click_on_the_map_shows_the_nearest_neighbours(page, photos, vectors)
    the_map_is_used_by_keys_alone(page)
    a_search_finds_images(page)
    clusters_copies_and_unreadable_files_are_shown(page, vectors)
    a_phone_is_told_of_touch_and_has_the_legend_beside_the_map(page)


def a_phone_is_told_of_touch_and_has_the_legend_beside_the_map(page):
    size = {"width": 390, "height": 844}
    context = page.context.browser.new_context(viewport=size, has_touch=True, is_mobile=True)
    phone = context.new_page()
    phone.goto(page.url)
    phone.wait_for_selector("body[data-ready]")
    assert "Tap an image" in phone.locator("#chosen").inner_text()
    assert phone.locator("#chosen kbd").count() == 0
    box, legend = (phone.locator(selector).bounding_box() for selector in ("#map", "#legend"))
    assert legend["y"] >= box["y"] + box["height"] - 1
    assert phone.evaluate("document.documentElement.scrollWidth") == 390
    for button in phone.locator("#view-map button:visible").all()[:7]:  # none lies under another
        button.click(trial=True, timeout=10_000)
    drawn = "document.querySelector('#map').toDataURL()"
    before, session = phone.evaluate(drawn), context.new_cdp_session(phone)
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    for kind, apart in (("touchStart", 30), ("touchMove", 60), ("touchMove", 110)):
        fingers = [{"x": x - apart, "y": y, "id": 0}, {"x": x + apart, "y": y, "id": 1}]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": fingers})
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    phone.wait_for_timeout(200)
    assert phone.evaluate(drawn) != before
    phone.click("#zoom-all")
    phone.wait_for_timeout(200)
    assert phone.evaluate(drawn) == before
    assert phone.locator("#chosen .path").count() == 0  # a pinch chooses nothing
    phone.click("#tab-clusters")
    phone.locator("#view-clusters .tile").first.tap()
    panel = phone.locator("#chosen .path").bounding_box()
    assert panel["y"] + panel["height"] < 844  # in sight, not below the last cluster
    phone.click("#tab-unreadable")
    assert not phone.get_by_text("not an image").evaluate(BREAKS)  # a word into letters
    context.close()


BREAKS = """element => {
    const text = element.firstChild, words = document.createRange();
    words.selectNodeContents(text);
    return words.getClientRects().length > text.textContent.split(" ").length;
}"""


def a_click_on_the_map_shows_the_nearest_neighbours(page, photos, vectors):
    box = page.locator("#map").bounding_box()
    assert page.locator("#chosen .path").count() == 0
    for step in range(2000):  # over the whole map, until there is an image
        x, y = box["x"] + 60 + step * 23 % 900, box["y"] + 120 + step // 39 * 20
        page.mouse.move(x, y)
        if page.locator("#hover").is_visible():
            break
    name = page.locator("#hover p").first.inner_text()
    page.mouse.click(x, y)
    assert page.locator("#chosen .path").inner_text() == name
    paths = sorted(file.relative_to(photos).as_posix() for file in photos.rglob("*.png"))
    nearest = nearest_neighbours(vectors, 12)
    expected = [paths[i] for i in nearest.indices[paths.index(name)]]
    tiles = page.locator("#chosen .tile")
    assert [tile.get_attribute("title") for tile in tiles.all()] == expected
    cosines = [f"{c:.3f}" for c in nearest.cosines[paths.index(name)].tolist()]
    shown = page.locator("#chosen .tile span").all_inner_texts()
    assert [float(a) for a in shown] == pytest.approx([float(b) for b in cosines], abs=0.0011)
    tiles.nth(2).click()
    assert page.locator("#chosen .path").inner_text() == expected[2]
    # What is drawn is a picture, not an empty canvas or a missing file.
    drawn = page.screenshot(clip={"x": 1110, "y": 100, "width": 60, "height": 60})
    assert len(drawn) > 1000


def the_map_is_used_by_keys_alone(page):
    page.focus("#map")
    page.keyboard.press("Escape")
    assert page.locator("#chosen .path").count() == 0
    page.keyboard.press("ArrowRight")
    first = page.locator("#chosen .path").inner_text()
    moved = set()
    for key in ("ArrowLeft", "ArrowUp", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
        moved.add(page.locator("#chosen .path").inner_text())
    assert moved - {first}
    for key in ("+", "+", "-", "0"):
        page.keyboard.press(key)
    page.focus("#tab-map")
    page.keyboard.press("ArrowRight")
    assert page.locator("#view-clusters").is_visible() and not page.locator("#map").is_visible()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#map").is_visible()


def a_search_finds_images(page):
    page.fill("#search", "green/03")
    assert page.locator("#found").inner_text() == "1 image"
    page.keyboard.press("Enter")
    assert page.locator("#chosen .path").inner_text() == "green/03.png"
    page.fill("#search", "")


def clusters_copies_and_unreadable_files_are_shown(page, vectors):
    page.get_by_role("button", name="Pictures").click()
    page.get_by_role("button", name="Folders").click()
    page.locator("#legend button").nth(1).click()
    page.click("#tab-clusters")
    cards = page.locator("#view-clusters article")
    assert cards.count() == 3
    assert all(
        card.evaluate("card => card.scrollWidth <= card.clientWidth") for card in cards.all()
    )
    assert re.search(r"green: \d+ %", cards.first.inner_text())
    page.click("#tab-duplicates")
    tiles = page.locator("#view-duplicates .tile")
    assert [tile.get_attribute("title") for tile in tiles.all()] == ["green/00.png", "red/05.png"]
    tiles.nth(1).click()
    assert page.locator("#chosen .path").inner_text() == "red/05.png"
    page.click("#tab-outliers")
    far = outliers(nearest_neighbours(vectors, 12))
    assert page.locator("#view-outliers .tile").count() == len(far) < 36
    page.click("#tab-unreadable")
    assert "<b>broken</b>xxx" in page.locator("#view-unreadable").inner_text()
    page.click("#tab-clusters")
    page.get_by_text("Show on the map").first.click()
    assert page.locator("#map").is_visible()
