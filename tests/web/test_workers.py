"""Workers in a browser: who consumes, what hangs, how many tasks end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from kombu_opendata import QueueClient

from ..support.page import opened
from ..support.shop import Shop
from ..support.views import address

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.usefixtures("shop")
SECONDS = 60
WAIT = 1000 * SECONDS


def test_workers_show_what_they_consume_and_what_hangs(shop: Shop, site: str, browser: Browser) -> None:
    from playwright.sync_api import expect

    with opened(browser) as page:
        page.goto(site + "workers")
        rows = page.locator("#workers tbody tr")
        expect(rows).to_have_count(2)
        counter = rows.filter(has_text="counter@test")
        expect(counter.get_by_role("link")).to_have_text(["counter@test", "billing", "mail", "orders"])
        cells = rows.filter(has_text="warehouse@test").get_by_role("cell")
        expect(cells).to_contain_text(["stock", "1", "0", "8", "shop.sync_stock, since"])
        others = page.locator("#others tbody tr").get_by_role("rowheader")
        expect(others.filter(has_text="opendata-queue web")).to_have_count(1)


def test_a_worker_shows_the_task_that_hangs_until_it_ends(shop: Shop, site: str, browser: Browser) -> None:
    from playwright.sync_api import expect

    with opened(browser) as page:
        page.goto(address("worker", shop, site))
        expect(page.get_by_role("heading", level=1)).to_have_text("warehouse@test")
        held = page.locator("#held tbody tr")
        expect(held.get_by_role("cell").first).to_have_text("shop.sync_stock")
        shop.gate.touch()
        expect(held).to_have_text("No messages.", timeout=WAIT)
        done = page.locator("#figures .figure").filter(has_text="Done")
        expect(done.locator("dd")).to_have_text(re.compile(r"^1\.0"), timeout=WAIT)


def test_workers_count_what_fails(shop: Shop, site: str, browser: Browser) -> None:
    from playwright.sync_api import expect

    for order in (9, 19, 29):
        shop.signature("charge", "billing", order, card_token="tok_1").delay()
    with opened(browser) as page:
        page.goto(site + "workers")
        counter = page.locator("#workers tbody tr").filter(has_text="counter@test")
        failed = counter.get_by_role("cell").nth(6)
        expect(failed).not_to_have_text("0", timeout=WAIT)


def test_a_worker_that_is_gone_is_not_found(site: str, browser: Browser) -> None:
    from playwright.sync_api import expect

    context = browser.new_context()
    try:
        page = context.new_page()
        response = page.goto(site + "worker?id=" + 32 * "0")
        assert response is not None
        assert response.status == 404
        expect(page.get_by_role("alert")).to_contain_text("there is no worker")
        page.get_by_role("main").get_by_role("link", name="Overview").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    finally:
        context.close()


def test_a_worker_is_shut_down(shop: Shop, site: str, browser: Browser) -> None:
    from playwright.sync_api import expect

    with opened(browser) as page, QueueClient(shop.url) as client:
        id = next(one.id for one in client.workers() if one.name == "counter@test" and one.consumers)
        page.goto(f"{site}worker?id={id}")
        page.get_by_role("button", name="Shut down…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("counter@test will end its running tasks")
        dialog.get_by_role("button", name="Shut down").click()
        expect(page.get_by_text("counter@test received a shutdown request.")).to_be_visible()
        gone = [worker for worker in shop.workers if worker.name == "counter@test"]
        assert [worker.wait(SECONDS) for worker in gone] == [0]
