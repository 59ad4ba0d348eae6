"""What comes, in a browser: delayed messages by time and queue, and what a real beat publishes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from kombu_opendata import QueueClient

from ..support.page import opened
from ..support.shop import Shop

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.usefixtures("shop")
WAIT = 60_000


def test_delayed_messages_are_shown_by_time_and_queue(shop: Shop, site: str, browser: Browser) -> None:
    """The shop has sent 11 mails, one for each half hour."""
    from playwright.sync_api import expect

    with opened(browser) as page, QueueClient(shop.url) as client:
        page.goto(site + "schedules?hours=6")
        expect(page.locator("#due")).to_contain_text("11 within this time, 0 later")
        heights = page.locator("svg.bars rect").evaluate_all("bars => bars.map(bar => +bar.getAttribute('height'))")
        assert len(heights) == 24
        assert sum(height > 0 for height in heights) == 11
        row = page.locator("#due-queues tbody tr").filter(has_text="mail")
        expect(row.get_by_role("cell").first).to_have_text("11")
        page.get_by_role("link", name="An hour").click()
        expect(page.locator("#due")).to_contain_text(re.compile(r"[12] within this time, (9|10) later"))
        client.create("letters")
        client.send("letters", "later", delay=60)
        page.goto(site + "schedules?hours=1&queue=letters")
        expect(page.locator("#due")).to_contain_text("1 within this time", timeout=WAIT)


def test_periodic_tasks_are_shown_with_their_interval(site: str, browser: Browser) -> None:
    from playwright.sync_api import expect

    with opened(browser) as page:
        page.goto(site + "schedules")
        row = page.locator("#periodic tbody tr").filter(has_text="shop.clean_carts")
        expect(row).to_have_count(1, timeout=WAIT)
        expect(row.get_by_role("cell").nth(2)).to_have_text(re.compile(r"^\d+s$"), timeout=WAIT)
        row.get_by_role("cell").nth(4).get_by_role("link").click()
        expect(page.get_by_role("main")).to_contain_text("shop.clean_carts")
