"""Exchanges in a browser: bindings, and where a message would go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kombu_opendata import QueueClient

from ..support.page import opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WAIT = 60_000
ODD = 'a/b ü?"<i>'


@pytest.fixture(scope="module", autouse=True)
def _exchanges(client: QueueClient) -> None:
    for queue in ("mail", "audit", "printed"):
        client.create(queue)
    client.declare_exchange("spare", "fanout")
    client.declare_exchange(ODD, "topic", arguments={"alternate-exchange": "spare"})
    client.bind("mail", ODD, "order.*")
    client.bind("audit", ODD, "#")
    client.declare_exchange("papers", "headers")
    client.bind("printed", "papers", "", {"copies": 3})


def test_an_exchange_with_its_bindings_is_reached_from_the_list(site: str, browser: Browser) -> None:
    from playwright.sync_api import expect

    with opened(browser) as page:
        page.goto(site + "exchanges?search=Ü")
        page.get_by_role("link", name=ODD).click()
        expect(page.get_by_role("heading", level=1)).to_contain_text(ODD)
        expect(page.get_by_role("link", name="spare")).to_be_visible()
        rows = page.locator("#bindings tbody tr")
        expect(rows.get_by_role("rowheader")).to_have_text(["#", "order.*"])
        expect(rows.get_by_role("link")).to_have_text(["audit", "mail"])


def test_the_answer_where_it_would_go_follows_what_is_typed(site: str, browser: Browser) -> None:
    from playwright.sync_api import expect

    with opened(browser) as page:
        page.goto(site + "exchanges")
        answer = page.locator("#route-answer")
        page.get_by_role("textbox", name="Exchange").fill(ODD)
        page.get_by_role("textbox", name="Routing key").fill("order.paid")
        expect(answer.get_by_role("link")).to_have_text(["audit", "mail"], timeout=WAIT)
        page.get_by_role("textbox", name="Routing key").fill("refund")
        expect(answer.get_by_role("link")).to_have_text(["audit"], timeout=WAIT)
        page.get_by_role("textbox", name="Exchange").fill("papers")
        expect(answer).to_contain_text("no queue", timeout=WAIT)
        page.get_by_role("textbox", name="Headers").fill("copies:=3")
        expect(answer.get_by_role("link")).to_have_text(["printed"], timeout=WAIT)
        page.get_by_role("textbox", name="Headers").fill("copies")
        expect(answer).to_contain_text("can't read the header 'copies'", timeout=WAIT)
        page.get_by_role("textbox", name="Headers").fill("")
        page.get_by_role("textbox", name="Exchange").fill("nowhere")
        expect(answer).to_contain_text("nowhere", timeout=WAIT)


def test_what_was_typed_stays_when_the_list_changes(client: QueueClient, site: str, browser: Browser) -> None:
    from playwright.sync_api import expect

    with opened(browser) as page:
        page.goto(site + "exchanges")
        page.get_by_role("textbox", name="Routing key").fill("mail")
        page.get_by_label("Name").focus()
        expect(page.locator("#route-answer").get_by_role("link")).to_have_text(["mail"], timeout=WAIT)
        client.declare_exchange("a-new-one")
        expect(page.get_by_role("link", name="a-new-one")).to_be_visible(timeout=WAIT)
        expect(page.get_by_role("textbox", name="Routing key")).to_have_value("mail")
        expect(page.locator("#route-answer").get_by_role("link")).to_have_text(["mail"])


def test_the_answer_has_an_address_that_can_be_shared(site: str, browser: Browser) -> None:
    from playwright.sync_api import expect

    with opened(browser, java_script_enabled=False) as page:
        page.goto(site + "exchanges")
        page.get_by_role("textbox", name="Routing key").fill("mail")
        page.get_by_role("button", name="Show").click()
        expect(page.locator("#route-answer").get_by_role("link")).to_have_text(["mail"])
        page.goto(page.url)
        expect(page.get_by_role("textbox", name="Routing key")).to_have_value("mail")
        expect(page.locator("#route-answer").get_by_role("link")).to_have_text(["mail"])
