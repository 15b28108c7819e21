"""The watched page in a real browser."""

import pytest

from orchestra_flwr.deployment.addresses import WatchConfig
from orchestra_flwr.deployment.watch.client_status import ClientStatus
from orchestra_flwr.deployment.watch.watched import watched

pytestmark = pytest.mark.slow


def test_no_text_leaves_a_narrow_window(browser, everything):
    everything.status._certificates[0].path = everything.folder.path / f"my_{'key' * 40}.crt"
    client = ClientStatus(
        "n" * 99,
        "h" * 99,
        20,
        connected=lambda: True,
        problem=lambda: f"<b>{'p' * 99}</b>",
        certificates=(),
    )
    for status in (everything.status, client):
        lines = []
        with watched(WatchConfig(port=0), status.to_dict, lines.append):
            page = browser.new_page(viewport={"width": 360, "height": 800})
            page.goto(lines[0].split()[-1])
            page.wait_for_function("document.querySelector('#fresh').textContent.includes('as of')")
            assert page.evaluate("document.documentElement.scrollWidth") == 360
            assert page.evaluate(OUTSIDE) == []
            shown = page.inner_text("body")
            page.close()
        assert "<b>ppp" in shown or ("my_keykey" in shown and "no answer" in shown)


# Words that are wider than the box around them.
OUTSIDE = """() => [...document.querySelectorAll("body *")]
    .filter((each) => each.clientWidth && each.scrollWidth > each.clientWidth + 1)
    .map((each) => each.outerHTML.slice(0, 99))"""
