"""Dialogs in a browser: what is asked, what is wrong, what was done; by keyboard, too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kombu_opendata import QueueClient

from ..support.page import PageServer, opened
from ..support.processes import Children

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ODD = 'a/b ü?"<script>alert(1)</script>'


@pytest.fixture
def site(store_folder: Path, broker_url: str, started: Children) -> str:
    with QueueClient(broker_url) as client:
        client.create(ODD)
        client.send_batch(ODD, [1, 2, 3])
    started.add(server := PageServer(store_folder, broker_url))
    return server.url


def test_a_queue_is_created_once_what_was_typed_is_right(site: str, broker_url: str, browser: Browser) -> None:
    from playwright.sync_api import expect

    with opened(browser) as page, QueueClient(broker_url) as client:
        page.goto(site)
        opener = page.get_by_role("button", name="Create a queue…")
        opener.focus()
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Queue").fill("new")
        dialog.get_by_label("Arguments").fill('{"x-max-length": "many"}')
        dialog.get_by_role("button", name="Create a queue").click()
        expect(dialog.get_by_role("alert")).to_contain_text("x-max-length must be an integer")
        dialog.get_by_label("Arguments").fill('{"x-max-length": 5}')
        dialog.get_by_role("button", name="Create a queue").click()
        expect(page.get_by_text("The queue new is there.")).to_be_visible()
        expect(dialog).to_have_count(0)
        expect(opener).to_be_focused()
        assert client.get_queue("new").arguments == {"x-max-length": 5}


def test_a_dialog_is_left_by_escape(site: str, browser: Browser) -> None:
    from playwright.sync_api import expect

    with opened(browser) as page:
        page.goto(site)
        page.get_by_role("button", name="Create a queue…").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_dialog_that_was_left_stays_closed_when_the_page_changes(
    site: str, broker_url: str, browser: Browser
) -> None:
    from playwright.sync_api import expect

    with opened(browser) as page, QueueClient(broker_url) as client:
        page.goto(site)
        page.get_by_role("button", name="Create a queue…").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        client.create("another")
        expect(page.get_by_role("link", name="another", exact=True)).to_be_attached(timeout=60_000)
        expect(page.get_by_role("dialog")).to_have_count(0)
