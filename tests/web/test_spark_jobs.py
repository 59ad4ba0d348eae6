"""Spark jobs in a browser: counts of tasks while they end, the failed ones, and ids of every kind."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx
import pytest

from kombu_opendata import QueueClient
from kombu_opendata.queue_client import QueueOptions

from ..support.batches import commit_job
from ..support.page import opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser

LONGEST = "é" * 127 + "x"


@pytest.fixture(scope="module", autouse=True)
def queue(client: QueueClient) -> str:
    client.create("q")
    return "q"


def test_a_job_shows_its_tasks_as_they_end(client: QueueClient, site: str, browser: Browser) -> None:
    from playwright.sync_api import expect

    commit_job(client, "it's nightly", 5)
    with opened(browser) as page:
        page.goto(f"{site}spark-jobs")
        row = page.get_by_role("row").filter(has_text="it's nightly")
        expect(row.get_by_role("cell").nth(1)).to_have_text("0 % of 5")
        first, *others = client.read("q", vt=600, qty=4)
        client.reject("q", first)
        client.archive_many("q", others)
        expect(row.get_by_role("cell").nth(1)).to_have_text("80 % of 5")
        row.get_by_role("link", name="it's nightly").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("it's nightly")
        figures = page.locator("#figures .figure dd")
        expect(figures.nth(1)).to_have_text("1")
        expect(figures.nth(4)).to_have_text("1")
        expect(page.locator(".facts")).to_contain_text("Acknowledged")
        expect(page.locator("#queues tbody tr").get_by_role("cell")).to_have_text(["5", "1", "3", "1", "0"])
        page.get_by_role("link", name="Failed tasks of this job").click()
        expect(page.get_by_role("link", name=f"message {first.id}")).to_be_visible()
        page.go_back()
        client.pop("q")
        expect(page.locator(".tag").first).to_have_text("ended")


@pytest.mark.parametrize("job_id", ["a/b?c#d", "../..", "<b>&amp;", "🐘", LONGEST])
def test_any_id_has_a_view(client: QueueClient, site: str, browser: Browser, job_id: str) -> None:
    from playwright.sync_api import expect

    commit_job(client, job_id, 1, queue="nowhere")
    with opened(browser, viewport={"width": 360, "height": 800}) as page:
        page.goto(f"{site}spark-jobs")
        page.get_by_role("link", name=job_id[:99]).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(job_id)
        expect(page.locator("dt:text-is('Removed') + dd")).to_have_text("1")
        assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_tasks_that_can_not_be_retried_have_no_button(client: QueueClient, http: httpx.Client) -> None:
    client.create("short", QueueOptions(message_ttl_seconds=0.001))
    commit_job(client, "expired", 2, queue="short")
    client.wait_job("expired", 60)
    assert client.get_job("expired").tasks.expired == 2
    view = http.get("spark-job", params={"id": "expired"}).text
    assert "Delete…" in view
    assert "Retry…" not in view
    assert "Failed tasks of this job" not in view
    preview = http.post("api/v1/actions/retry-job/preview", json={"job_id": "expired"}).json()
    assert (preview["text"], preview["is_possible"]) == ("No task can run again.", False)


def test_lists_have_pages(client: QueueClient, http: httpx.Client) -> None:
    for number in range(55):
        commit_job(client, f"many-{number:02}", 0)
    first = http.get("api/v1/spark-jobs", params={"after": "many"}).json()
    assert [job["job_id"] for job in first["jobs"]] == [f"many-{number:02}" for number in range(50)]
    second = http.get("api/v1/spark-jobs", params={"after": first["next"]}).json()
    assert [job["job_id"] for job in second["jobs"]][:5] == [f"many-{number:02}" for number in range(50, 55)]


@pytest.mark.parametrize(("job_id", "status"), [("other", 404), ("", 422), (f"{LONGEST}é", 422)])
def test_other_ids_are_refused(http: httpx.Client, job_id: str, status: int) -> None:
    for path in ("spark-job", "api/v1/spark-job"):
        answer = http.get(f"{path}?id={quote(job_id)}")
        assert answer.status_code == status, answer.text
