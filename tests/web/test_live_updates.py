"""An open page follows what happens: it keeps its place, and goes on after a broker or its own server was away."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kombu_opendata import QueueClient
from tests.support.waiting import pass_time

from ..support.page import PageServer, opened
from ..support.processes import Children, wait_until
from ..support.served import ServedBroker

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Route

SECONDS = 60_000


def ready_of(page: Page, queue: str) -> Locator:
    """How many messages are ready, in the table."""
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name=queue, exact=True))
    return row.get_by_role("cell").first


def wait_for_updates(page: Page) -> None:
    """Until the page receives updates; Playwright's own wait may evaluate a text, which the page's policy refuses."""
    wait_until(lambda: page.evaluate("!!document.querySelector('#content')?._htmx?.sse"), 60, "updates of the page")


def test_a_page_keeps_its_place(store_folder: Path, broker_url: str, started: Children, browser: Browser) -> None:
    from playwright.sync_api import expect

    with QueueClient(broker_url) as client:
        for number in range(60):
            client.create(f"queue-{number:02}")
        started.add(server := PageServer(store_folder, broker_url))
        with opened(browser, viewport={"width": 400, "height": 500}) as page:
            page.goto(server.url)
            page.locator("#search").fill("typed")
            link = page.locator("#queues").get_by_role("link", name="queue-30", exact=True)
            link.focus()
            page.evaluate(
                "() => { getSelection().selectAllChildren(document.querySelector('h1')); window.kept = {"
                "table: document.querySelector('#queues'), wide: document.querySelector('.scroll')};"
                "window.kept.wide.scrollLeft = 60 }"
            )
            before = page.evaluate("[scrollY, kept.wide.scrollLeft]")
            assert before[0] > 0
            client.send("queue-30", "one")
            client.create("a new one")
            expect(ready_of(page, "queue-30")).to_have_text("1", timeout=SECONDS)
            expect(page.locator("#attention")).to_contain_text("queue-30", timeout=SECONDS)
            expect(page.get_by_role("link", name="a new one", exact=True)).to_be_attached(timeout=SECONDS)
            expect(link).to_be_focused()
            assert page.evaluate("String(getSelection())") == "Overview"
            assert page.evaluate("kept.wide.scrollLeft") == before[1]
            assert page.evaluate("kept.table === document.querySelector('#queues')")
            assert page.locator("#search").input_value() == "typed"


def test_a_click_loads_nothing(store_folder: Path, broker_url: str, started: Children, browser: Browser) -> None:
    with QueueClient(broker_url) as client:
        client.create("mail")
        started.add(server := PageServer(store_folder, broker_url))
        with opened(browser) as page:
            asked: list[str] = []
            page.goto(server.url)
            wait_for_updates(page)
            page.on("request", lambda request: asked.append(request.url))
            page.locator("#totals").click()
            page.locator("#queues tbody td").first.click()
            page.get_by_role("link", name="Ready", exact=True).click()
            page.wait_for_url("**sort=ready*")
            first = next(url for url in asked if "static" not in url)
            assert "live" not in first


def test_a_script_that_comes_late_does_no_harm(
    store_folder: Path, broker_url: str, started: Children, browser: Browser
) -> None:
    def late(route: Route) -> None:
        pass_time(0.5)  # longer than htmx waits for others, once it is there itself
        route.continue_()

    with QueueClient(broker_url) as client:
        client.create("mail")
        started.add(server := PageServer(store_folder, broker_url))
        with opened(browser) as page:
            page.route("**/hx-sse.min.js*", late)
            page.goto(server.url)
            wait_for_updates(page)


def test_a_broker_that_was_away_comes_back_under_an_open_page(
    tmp_path: Path, store_folder: Path, started: Children, browser: Browser
) -> None:
    from playwright.sync_api import expect

    socket = store_folder / "b.sock"
    line = "--store", str(store_folder), "--listen", f"unix:{socket}"
    url = f"opendata://{str(socket).replace('/', '%2F')}"
    started.add(broker := ServedBroker(tmp_path, *line))
    with QueueClient(url) as client:
        client.create("mail")
    started.add(server := PageServer(tmp_path, url))
    with opened(browser) as page:
        page.goto(server.url)
        expect(ready_of(page, "mail")).to_have_text("0")
        broker.kill()
        expect(page.locator("#away")).to_be_visible(timeout=SECONDS)
        expect(ready_of(page, "mail")).to_have_text("0")
        started.add(ServedBroker(tmp_path, *line))
        expect(page.locator("#away")).to_be_hidden(timeout=SECONDS)
        with QueueClient(url) as client:
            client.send("mail", "one")
        expect(ready_of(page, "mail")).to_have_text("1", timeout=SECONDS)


def test_a_page_that_is_opened_while_the_broker_is_away_waits_for_it(
    tmp_path: Path, store_folder: Path, started: Children, browser: Browser
) -> None:
    from playwright.sync_api import expect

    socket = store_folder / "b.sock"
    url = f"opendata://{str(socket).replace('/', '%2F')}"
    started.add(server := PageServer(tmp_path, url))
    context = browser.new_context()
    try:
        page = context.new_page()  # its console tells of the answer 503, which `opened` would not let pass
        page.goto(server.url)
        expect(page.get_by_text("The broker does not answer").first).to_be_visible(timeout=SECONDS)
        started.add(ServedBroker(tmp_path, "--store", str(store_folder), "--listen", f"unix:{socket}"))
        expect(page.locator("#totals")).to_be_visible(timeout=SECONDS)
    finally:
        context.close()


def test_the_pages_own_server_starts_anew(
    tmp_path: Path, store_folder: Path, broker_url: str, started: Children, browser: Browser
) -> None:
    from playwright.sync_api import expect

    with QueueClient(broker_url) as client:
        client.create("mail")
        started.add(server := PageServer(tmp_path, broker_url))
        context = browser.new_context()
        try:
            page = context.new_page()  # its console tells of refused connections
            page.goto(server.url)
            expect(ready_of(page, "mail")).to_have_text("0")
            wait_for_updates(page)
            server.terminate()
            expect(page.locator("#connection")).to_be_visible(timeout=SECONDS)
            port = server.url.rstrip("/").rpartition(":")[2]
            started.add(PageServer(tmp_path, broker_url, "--listen", f"127.0.0.1:{port}"))
            expect(page.locator("#connection")).to_be_hidden(timeout=SECONDS)
            client.send("mail", "one")
            expect(ready_of(page, "mail")).to_have_text("1", timeout=SECONDS)
        finally:
            context.close()


def test_charts_are_there_at_once_and_are_not_drawn_anew(
    store_folder: Path, broker_url: str, started: Children, browser: Browser
) -> None:
    with QueueClient(broker_url) as client:
        client.create("mail")
        started.add(server := PageServer(store_folder, broker_url))
        with opened(browser) as page:
            page.goto(server.url)
            page.wait_for_selector("#chart-all-1 canvas")
            page.evaluate("window.canvas = document.querySelector('#chart-all-1 canvas')")
            source = page.locator("#chart-all-1").get_attribute("data-chart")
            client.send("mail", "one")  # and the broker takes a sample every five seconds
            page.wait_for_function(
                "source => document.querySelector('#chart-all-1').dataset.chart !== source", arg=source, timeout=SECONDS
            )
            assert page.evaluate("canvas === document.querySelector('#chart-all-1 canvas')")
            assert page.locator("#queues svg.spark polyline").get_attribute("points")
