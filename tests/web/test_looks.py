"""The first sight of the web UI: times, charts, the age of the figures, fields, errors in words."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kombu_opendata import QueueClient

from ..support.page import PageServer, opened
from ..support.processes import Children, children, wait_until
from ..support.served import ServedBroker
from ..support.users import user_table, write_users

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

pytestmark = pytest.mark.slow

WIDTHS = (390, 1280, 1920)
#: notes at each canvas the texts that it has, with where they begin and end
DRAWN = """
const { fillText, clearRect } = CanvasRenderingContext2D.prototype;
CanvasRenderingContext2D.prototype.clearRect = function (...place) {
  this.canvas.drawn = [];
  return clearRect.apply(this, place);
};
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  const wide = this.measureText(text).width;
  (this.canvas.drawn ??= []).push([text, x - wide / 2, x + wide / 2]);  // centred, as labels of times are
  return fillText.call(this, text, x, y);
};
"""
#: one whose own format of times is another
AMERICAN: dict[str, Any] = {"locale": "en-US", "timezone_id": "America/New_York"}


def test_times_are_those_of_iso_8601_and_no_label_covers_another(
    store_folder: Path, broker_url: str, started: Children, browser: Browser
) -> None:
    with QueueClient(broker_url) as client:
        client.create("mail")
        id = client.send("mail", "one")
    started.add(server := PageServer(store_folder, broker_url))
    for width in WIDTHS:
        with opened(browser, viewport={"width": width, "height": 800}, **AMERICAN) as page:
            page.add_init_script(DRAWN)
            page.goto(server.url)
            for number in (1, 2):
                check_chart(page.locator(f"#chart-all-{number} canvas"), width)
            page.goto(f"{server.url}message?id={id}")
            shown = page.locator("time").first.inner_text()
            assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", shown)


def check_chart(canvas: Locator, width: int) -> None:
    """Check the texts of a chart, which comes when the broker has taken a sample."""
    canvas.wait_for()
    wait_until(lambda: bool(canvas.evaluate("one => one.drawn?.length")), 60, "a chart")
    texts = canvas.evaluate("one => one.drawn")
    labels = sorted((left, right, text) for text, left, right in texts if ":" in text or "/" in text)
    assert labels
    assert all(re.fullmatch(r"\d\d:\d\d", text) for _left, _right, text in labels)
    assert all(one[1] < other[0] for one, other in pairwise(labels))
    assert not {"1969", "1970"} & {text for text, _left, _right in texts}
    assert canvas.evaluate("one => one.getBoundingClientRect().right") <= width


def test_a_chart_without_data_says_so(store_folder: Path, broker_url: str, started: Children, browser: Browser) -> None:
    from playwright.sync_api import expect

    started.add(server := PageServer(store_folder, broker_url))
    with opened(browser) as page:
        page.goto(server.url)
        page.evaluate(
            "() => { const chart = document.querySelector('#chart-all-1');"
            "chart.dataset.chart = JSON.stringify({times: [], series: [{label: 'x', color: 'link', values: []}]});"
            "document.dispatchEvent(new Event('htmx:after:swap')) }"
        )
        expect(page.locator("#chart-all-1 .plot")).to_have_text("No data yet.")


def test_a_view_tells_how_old_its_figures_are(tmp_path: Path, store_folder: Path, browser: Browser) -> None:
    from playwright.sync_api import expect

    socket = store_folder / "b.sock"
    url = f"opendata://{str(socket).replace('/', '%2F')}"
    with children() as started:
        started.add(broker := ServedBroker(tmp_path, "--store", str(store_folder), "--listen", f"unix:{socket}"))
        started.add(server := PageServer(tmp_path, url))
        with opened(browser) as page:
            for path in ("", "failed", "workers", "exchanges", "schedules", "replays", "spark-jobs", "store", "jobs"):
                page.goto(f"{server.url}{path}")
                expect(page.locator("#updated")).to_have_text(re.compile(r"updated \d s ago"))
            page.goto(server.url)
            broker.kill()
            expect(page.locator("#away")).to_be_visible()
            expect(page.locator("#updated")).to_have_text(re.compile(r"updated ([6-9]|\d\d+) s ago"))
            started.add(ServedBroker(tmp_path, "--store", str(store_folder), "--listen", f"unix:{socket}"))
            expect(page.locator("#away")).to_be_hidden()
            expect(page.locator("#updated")).to_have_text(re.compile(r"updated [0-4] s ago"))


def test_fields_of_the_login_are_as_wide_as_names(store_folder: Path, browser: Browser) -> None:
    users = write_users(store_folder / "users", user_table("root", "r", {"*": {}}, roles=("admin",)))
    place = ("--store", f"file://{store_folder}/store", "--listen", "tcp:127.0.0.1:0", "--users", str(users))
    with children() as started:
        started.add(broker := ServedBroker(store_folder, *place, "--allow-cleartext"))
        started.add(server := PageServer(store_folder, f"opendata://127.0.0.1:{broker.port}"))
        with opened(browser) as page:
            page.goto(server.url)
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 800})
                for field in ("Name", "Password"):
                    box = page.get_by_label(field).bounding_box()
                    assert box is not None
                    assert 200 <= box["width"] <= 400


def test_an_address_without_a_parameter_is_explained_in_a_sentence(
    store_folder: Path, broker_url: str, started: Children, browser: Browser
) -> None:
    from playwright.sync_api import expect

    started.add(server := PageServer(store_folder, broker_url))
    context = browser.new_context()
    try:
        page = context.new_page()  # its console tells of the answer 422
        page.goto(f"{server.url}message?id=abc")
        expect(page.locator("#fault")).to_contain_text("The parameter id must be a whole number.")
    finally:
        context.close()
