"""What is wrong in a shop is named on its first view, with real workers."""

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


def test_trouble_is_named_on_the_first_view(shop: Shop, site: str, browser: Browser) -> None:
    from playwright.sync_api import expect

    with opened(browser) as page:
        page.goto(site)
        attention = page.locator("#attention li")

        def sentence(name: str) -> None:
            expect(attention.filter(has=page.get_by_role("link", name=name, exact=True))).to_be_visible(timeout=60_000)

        sentence("shop.charge")
        sentence("reports")
        sentence("shop.sync_stock")
        expect(attention.filter(has_text="reports")).to_contain_text("Queue reports has no consumers: 3 messages")
        expect(attention.filter(has_text="shop.charge")).to_have_text(re.compile("fails: 6 in ten minutes"))
        expect(attention.filter(has_text="shop.sync_stock")).to_contain_text("has run for")
        expect(attention.filter(has_text="shop.sync_stock")).to_contain_text("at warehouse@")
        expect(page.locator("#queues")).to_contain_text("billing")
        expect(page.locator("#queues")).not_to_contain_text("pidbox")


def test_celerys_own_queues_are_behind_a_switch(shop: Shop, site: str, browser: Browser) -> None:
    from playwright.sync_api import expect

    with opened(browser) as page:
        page.goto(site)
        page.get_by_role("link", name=re.compile(r"show \d+ control queue")).click()
        expect(page.locator("#queues")).to_contain_text("pidbox")
        page.get_by_role("link", name="hide Celery's control queues").click()
        expect(page.locator("#queues")).not_to_contain_text("pidbox")


def test_queues_are_found_sorted_and_shared_by_url(shop: Shop, site: str, browser: Browser) -> None:
    from playwright.sync_api import expect

    with opened(browser) as page:
        page.goto(site)
        page.get_by_role("link", name="Ready", exact=True).click()
        rows = page.locator("#queues tbody tr")
        expect(rows.first).to_contain_text("reports")
        page.get_by_role("searchbox", name="Queue", exact=True).fill("STO")
        page.get_by_role("button", name="Search").click()
        expect(rows).to_have_count(1)
        expect(rows.first).to_contain_text("stock")
        with opened(browser) as other:
            other.goto(page.url)
            expect(other.locator("#queues tbody tr")).to_have_count(1)


def test_the_api_says_the_same(shop: Shop, site: str, browser: Browser) -> None:
    with opened(browser) as page:
        found = page.request.get(f"{site}api/v1/attention").json()
        assert {"not_consumed", "failing"} <= {one["kind"] for one in found}
        told = next(one for one in found if one["kind"] == "not_consumed")
        assert told["text"].startswith("Queue reports has no consumers: 3 messages are ready")
        assert (told["view"], told["query"]) == ("queue", {"name": "reports"})
    with QueueClient(shop.url) as client:
        assert client.metrics("reports").ready == 3
