"""The store's page: its figures, its maintenance, and a verification beside the running broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kombu_opendata import QueueClient

from ..support.page import opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WAIT = 60_000


@pytest.fixture(scope="module", autouse=True)
def _messages(client: QueueClient) -> None:
    client.create("mail")
    client.send_batch("mail", range(20))


def test_maintenance_is_done_on_request(site: str, browser: Browser) -> None:
    from playwright.sync_api import expect

    with opened(browser) as page:
        page.goto(site + "store")
        row = page.get_by_role("row").filter(has_text="Expire leases")
        expect(row.get_by_role("cell").last).to_have_text("-")
        page.get_by_role("button", name="Do maintenance now").click()
        page.get_by_role("dialog").get_by_role("button", name="Maintain").click()
        expect(row.get_by_role("cell").last).to_contain_text("by opendata-queue web", timeout=WAIT)


def test_a_verification_tells_what_it_found(site: str, browser: Browser) -> None:
    from playwright.sync_api import expect

    with opened(browser) as page:
        page.goto(site + "store")
        verified = page.locator("#verified-default")
        expect(verified).to_contain_text("Not verified since")
        page.get_by_role("button", name="Verify…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("opendata-queue store verify /")
        dialog.get_by_role("button", name="Verify the store").click()
        expect(verified).to_contain_text("clean", timeout=WAIT)
        expect(verified).to_contain_text("20 messages checked")
