"""The views of messages and tasks, with real workers: what became of them, and nothing in them that does harm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from kombu_opendata import QueueClient

from ..support.page import opened
from ..support.shop import Shop

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.usefixtures("shop")
EVIL = "</pre><script>document.title='pwned'</script><img src=x onerror=alert(1)>\u202e\x1b[31m"


def test_a_failed_task_is_understood_and_run_again(
    site: str, shop: Shop, client: QueueClient, browser: Browser
) -> None:
    from playwright.sync_api import expect

    failure = next(one for one in client.list_failures().items if "CardDeclined" in one.exception)
    with opened(browser) as page:
        page.goto(site)
        page.get_by_role("searchbox", name="Go to a queue").fill(failure.task_id)
        page.keyboard.press("Enter")
        expect(page.locator("#state")).to_have_text("raised")
        expect(page.locator("#attempts pre")).to_contain_text("raise CardDeclined(")
        expect(page.locator("#kwargs")).to_contain_text('"card_token": "••••••"')
        expect(page.get_by_text("tok_4242")).to_have_count(0)
        page.get_by_role("button", name="Retry…").click()
        page.get_by_role("dialog").get_by_role("button", name="Retry").click()
        expect(page.get_by_text("1 failure retried.")).to_be_visible()
        page.get_by_role("link", name="retried as message").click(timeout=30_000)
        expect(page.get_by_role("heading", level=1)).not_to_have_text(f"Message {failure.message_id}")
        expect(page.get_by_role("heading", level=1)).to_contain_text("Message ")


def test_a_canvas_is_a_tree(site: str, shop: Shop, browser: Browser) -> None:
    from playwright.sync_api import expect

    with opened(browser) as page:
        page.goto(f"{site}task?id={shop.canvas}")
        tasks = ["shop.pack done", "shop.wrap done", "shop.wrap done", "shop.ship done"]
        expect(page.locator("#canvas li")).to_have_text(tasks)
        expect(page.locator("#result")).to_have_text('"shipped [1, 1]"')


def test_who_has_a_task_that_hangs(site: str, shop: Shop, browser: Browser) -> None:
    from playwright.sync_api import expect

    with opened(browser) as page:
        page.goto(f"{site}task?id={shop.hanging}")
        expect(page.locator("#state")).to_have_text("running")
        expect(page.locator("#attempts li")).to_contain_text("running since")
        expect(page.locator("#attempts li")).to_contain_text("by warehouse@test")


def test_nothing_in_a_message_does_harm(site: str, client: QueueClient, browser: Browser) -> None:
    from playwright.sync_api import expect

    client.create("evil")
    number = client.send("evil", EVIL, headers={EVIL[:40]: EVIL})
    with opened(browser) as page:
        page.goto(f"{site}message?id={number}")
        expect(page.locator("#body")).to_contain_text("</pre><script>")
        expect(page.locator("#body")).to_contain_text("\\u202e\\x1b[31m")
        assert "pwned" not in page.title()


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"\x80\x04\x95cos\nsystem\n.", "which is not loaded"),
        (b"\xff\xfe\x00", "ff fe 00"),
        ("x" * 100_000, "only its beginning is shown"),
        ("token" * 20_000 + "='" * 10_000, "only its beginning is shown"),
        ([1 << 200, float("1e300")], str(1 << 200)),
    ],
    ids=["pickle", "bytes", "long", "names", "numbers"],
)
def test_bodies_of_all_kinds(site: str, client: QueueClient, body: object, shown: str) -> None:
    client.create("bodies")
    number = client.send("bodies", body)
    answer = httpx.get(f"{site}message", params={"id": number}, timeout=60)
    assert answer.status_code == 200
    assert shown in answer.text
    assert len(answer.content) < 250_000
    saved = httpx.get(f"{site}message/body", params={"id": number}, timeout=60)
    assert saved.headers["content-type"] == "application/octet-stream"
    if isinstance(body, bytes):
        assert saved.content == body
