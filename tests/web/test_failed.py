"""The view of what failed, with real workers: groups, filters, running again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kombu_opendata import QueueClient

from ..support.page import opened
from ..support.shop import FAILURES, Shop

if TYPE_CHECKING:
    from playwright.sync_api import Browser


pytestmark = pytest.mark.usefixtures("shop")


def test_what_failed_is_found_by_its_groups_and_runs_again(site: str, shop: Shop, browser: Browser) -> None:
    from playwright.sync_api import expect

    with opened(browser) as page, QueueClient(shop.url) as client:
        page.goto(f"{site}failed")
        expect(page.locator("#total")).to_have_text(str(FAILURES))
        groups = page.locator("#groups tbody tr")
        expect(groups).to_have_count(3)
        expect(groups.filter(has_text="CardDeclined").get_by_role("cell").first).to_have_text("2")
        page.get_by_role("link", name="exception", exact=True).click()
        expect(groups).to_have_count(1)
        page.go_back()
        expect(groups).to_have_count(3)

        page.locator("#content").get_by_text("Selected:").locator("xpath=..").get_by_role(
            "button", name="Retry…", exact=True
        ).click()
        expect(page.get_by_role("dialog")).to_contain_text("Nothing is selected.")
        page.keyboard.press("Escape")

        before = {one.message_id for one in client.list_failures().items}
        groups.filter(has_text="KeyError").get_by_role("button", name="Retry…").click()
        expect(page.get_by_role("dialog")).to_contain_text("2 failures will be retried")
        page.get_by_role("dialog").get_by_role("button", name="Retry").click()
        expect(page.get_by_text("2 failures retried.")).to_be_visible(timeout=30_000)
        assert len(before - {one.message_id for one in client.list_failures().items}) == 2
        page.get_by_role("link", name="Background", exact=True).click()
        expect(page.locator("#background-jobs tbody tr").first).to_contain_text("2 failures retried.")


def test_a_failure_leads_to_its_task(site: str, browser: Browser) -> None:
    from playwright.sync_api import expect

    with opened(browser) as page:
        page.goto(f"{site}failed?exception=shop.CardDeclined")
        page.locator("#failures tbody").get_by_role("link", name="shop.charge").first.click()
        expect(page.locator("#attempts pre")).to_contain_text("raise CardDeclined(")
