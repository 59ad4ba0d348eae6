"""The view of a queue in a browser, with real workers: its tabs, its filter box, its selection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kombu_opendata import QueueClient

from ..support.page import opened
from ..support.processes import wait_until
from ..support.shop import FAILURES, Shop

if TYPE_CHECKING:
    from playwright.sync_api import Browser


pytestmark = pytest.mark.usefixtures("shop")


def test_who_runs_what_since_when(site: str, shop: Shop, browser: Browser) -> None:
    from playwright.sync_api import expect

    with opened(browser) as page:
        page.goto(f"{site}queue?name=stock")
        page.get_by_role("link", name="Running").click()
        row = page.get_by_role("row").filter(has_text="shop.sync_stock")
        expect(row).to_contain_text("warehouse@test")
        expect(row.get_by_role("link", name="shop.sync_stock")).to_have_attribute("href", f"/task?id={shop.hanging}")


def test_the_filter_box_checks_while_one_types(site: str, browser: Browser) -> None:
    from playwright.sync_api import expect

    with opened(browser) as page:
        page.goto(f"{site}queue?name=reports")
        box = page.get_by_label("Filter")
        box.press_sequentially("task = 'shop")
        expect(page.get_by_role("alert").filter(has_text="the text constant has no closing")).to_be_visible()
        box.press_sequentially(".monthly_report'")
        expect(page.get_by_text("This is a filter.")).to_be_visible()
        page.get_by_role("button", name="Filter").click()
        expect(page.get_by_text("3 of the 3 examined messages match.")).to_be_visible()
        number = page.locator("#messages tbody th").first.inner_text()
        page.get_by_label("Message", exact=True).fill(number)
        page.get_by_role("button", name="Explain").click()
        expect(page.locator("#explained")).to_contain_text("task is 'shop.monthly_report'")


def test_what_is_selected_stays_selected_and_is_done(site: str, shop: Shop, browser: Browser) -> None:
    from playwright.sync_api import expect

    with opened(browser) as page, QueueClient(shop.url) as client:
        page.goto(f"{site}queue?name=reports")
        boxes = page.get_by_role("checkbox")
        expect(boxes).to_have_count(3)
        number = int(boxes.first.get_attribute("value") or "")
        page.get_by_label("Message", exact=True).fill("7")
        boxes.first.check()
        client.send("reports", "another")
        expect(boxes).to_have_count(4, timeout=30_000)
        expect(boxes.first).to_be_checked()
        expect(page.get_by_label("Message", exact=True)).to_have_value("7")
        page.get_by_role("button", name="Mark as done…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("1 message of reports will count as done.")
        dialog.get_by_role("button", name="Mark as done").click()
        expect(page.get_by_text("1 message marked as done.")).to_be_visible()
        expect(page.locator(f"#message-{number}")).to_have_count(0, timeout=30_000)


def test_failures_of_a_queue_run_again(site: str, shop: Shop, browser: Browser) -> None:
    from playwright.sync_api import expect

    with opened(browser) as page, QueueClient(shop.url) as client:
        page.goto(f"{site}queue?name=billing&tab=failed")
        expect(page.get_by_role("checkbox")).to_have_count(FAILURES)
        expect(page.get_by_text("CardDeclined: order 9: the bank said no")).to_be_visible()
        before = len(client.list_messages(queues=["billing"], limit=1000).items)
        page.get_by_role("button", name="Retry all…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text(f"{FAILURES} failures will be retried")
        dialog.get_by_role("button", name="Retry").click()
        expect(page.get_by_text(f"{FAILURES} failures retried.")).to_be_visible(timeout=30_000)
        wait_until(
            lambda: len(client.list_messages(queues=["billing"], limit=1000).items) == before + FAILURES, 60, "they ran"
        )
