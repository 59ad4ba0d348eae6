"""The first view in a browser: figures that change, names with anything in them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kombu_opendata import QueueClient

from ..support.page import PageServer, opened
from ..support.processes import Children

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ODD = 'a/b ü?"<script>alert(1)</script>'


def test_the_first_view_shows_queues_and_follows_them(
    store_folder: Path, broker_url: str, started: Children, browser: Browser
) -> None:
    from playwright.sync_api import expect

    with QueueClient(broker_url) as client:
        for queue in ("mail", ODD):
            client.create(queue)
        client.send("mail", "one")
        started.add(server := PageServer(store_folder, broker_url))
        with opened(browser) as page:
            page.goto(server.url)
            row = page.get_by_role("row").filter(has=page.get_by_role("link", name="mail", exact=True))
            expect(row.get_by_role("cell").first).to_have_text("1")
            expect(page.get_by_role("link", name=ODD, exact=True)).to_be_visible()
            client.send("mail", "two")
            expect(row.get_by_role("cell").first).to_have_text("2", timeout=30_000)
