"""Actions over HTTP: those of the API and the forms that dialogs send."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from kombu_opendata import QueueClient
from kombu_opendata.queue_client.queue_options import QueueOptions
from kombu_opendata.web.rendering import link

from ..support.page import PageServer
from ..support.processes import children

ODD = 'a/b ü?"<script>alert(1)</script>'


@pytest.fixture(scope="module")
def site(http: httpx.Client) -> httpx.Client:
    return http


def test_a_purge_wants_the_name_again(site: httpx.Client, client: QueueClient) -> None:
    client.create(ODD)
    client.send_batch(ODD, [1, 2, 3])
    asked = site.get("/actions/purge", params={"queue": ODD})
    assert "3 ready or delayed messages" in asked.text
    assert "<script>" not in asked.text
    refused = site.post("/actions/purge", data={"queue": ODD, "typed_again": "a/b"})
    assert "to confirm" in refused.text
    assert client.metrics(ODD).ready == 3
    done = site.post("/actions/purge", data={"queue": ODD, "typed_again": ODD})
    assert "3 messages" in done.text
    assert client.metrics(ODD).ready == 0


def test_the_api_looks_before_it_does(site: httpx.Client, client: QueueClient) -> None:
    client.create("q")
    client.send_batch("q", [1, 2])
    assert site.post("/api/v1/actions/purge/preview", json={"queue": "q"}).json()["count"] == 2
    assert client.metrics("q").ready == 2
    assert site.post("/api/v1/actions/purge", json={"queue": "q"}).json()["counts"] == {"deleted": 2}


def test_messages_that_are_gone_are_said(site: httpx.Client, client: QueueClient) -> None:
    client.create("gone")
    here = client.send("gone", "x")
    form = {"queue": "gone", "ids": [str(here), "99999999"]}
    done = site.post("/actions/delete-messages", data=form)
    assert "1 message deleted" in done.text
    assert "1 message not" in done.text
    again = site.post("/actions/delete-messages", data=form)
    assert "No message was deleted: " in again.text
    refused = site.post("/api/v1/actions/delete-messages", json={"queue": "gone", "ids": [here, 99999999]})
    assert (refused.status_code, refused.json()["code"]) == (404, "message_not_found")


def test_failures_that_can_not_run_again_are_an_error(site: httpx.Client, client: QueueClient) -> None:
    client.create("stays")
    client.create("picky", QueueOptions(filter="amount > 100", filter_mode="all"))
    client.send("stays", "x", {"amount": 1})
    client.reject("stays", client.read("stays", vt=30)[0])
    refused = site.post("/api/v1/actions/retry", json={"queues": ["stays"], "target": "picky"})
    assert (refused.status_code, refused.json()["message"]) == (409, "Nothing was retried: 1 unmatched.")
    moved = site.post("/api/v1/actions/archive-failed", json={"queue": "stays", "ids": [99999999]})
    assert moved.status_code == 404
    client.send("stays", "y", {"amount": 2})
    moved = site.post("/api/v1/actions/move", json={"queue": "stays", "target": "picky"})
    assert (moved.status_code, moved.json()["message"]) == (409, "No message was moved to picky: 1 unmatched.")


@pytest.mark.parametrize(
    ("action", "subject"),
    [
        ("purge", {"queue": "no queue"}),
        ("pause", {"queue": "no queue"}),
        ("alter", {"queue": "no queue"}),
        ("move", {"queue": "no queue", "target": "neither"}),
        ("mark-done", {"queue": "no queue", "ids": ["1"]}),
        ("retry", {"queues": ["no queue"]}),
        ("stop-replay", {"queue": "no queue"}),
        ("delete-exchange", {"exchange": "no exchange"}),
        ("suspend-worker", {"worker": "ab" * 16}),
        ("shutdown-worker", {"worker": "ab" * 16}),
        ("verify-store", {"instance": "none"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_gone_meanwhile_is_said(site: httpx.Client, action: str, subject: dict[str, list[str] | str]) -> None:
    said = site.post(f"/actions/{action}", data={**subject, "typed_again": next(iter(subject.values()))})
    assert said.status_code == 200
    assert "<dialog" in said.text
    assert 'role="alert"' in said.text
    found = site.post(f"/api/v1/actions/{action}", json=subject)
    assert found.status_code in (404, 409), found.text
    assert found.json()["message"]


def test_a_job_that_has_ended_is_not_cancelled(site: httpx.Client, client: QueueClient) -> None:
    client.create("short")
    site.post("/actions/purge", data={"queue": "short", "typed_again": "short"})
    number = max(one["id"] for one in site.get("/api/v1/jobs").json())
    assert site.post(f"/jobs/{number}/cancel").status_code == 200
    assert site.get(f"/api/v1/jobs/{number}").json()["state"] == "done"
    assert site.post("/jobs/99999/cancel").status_code == 404


@pytest.mark.parametrize("action", ["retry", "delete-failures", "archive-failed"])
def test_no_selection_is_not_everything(site: httpx.Client, client: QueueClient, action: str) -> None:
    client.create("unselected")
    address = link("", f"actions/{action}", queue="unselected", ids=[])
    assert address == f"/actions/{action}?queue=unselected&ids="
    asked = site.get(address)
    assert "Nothing is selected." in asked.text
    assert 'class="main"' not in asked.text
    assert 'class="danger"' not in asked.text


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("purge", {}),
        ("purge", {"queue": "q", "more": 1}),
        ("delete-messages", {"queue": "q", "ids": ["x"]}),
        ("delete-messages", {"queue": "q", "ids": list(range(1001))}),
        ("send", {"queue": "q", "body": "x", "priority": 256}),
        ("bind", {"exchange": "e", "queue": "q", "arguments": "{"}),
        ("retry", {"since": "yesterday"}),
    ],
    ids=["nothing", "unknown", "no number", "too many", "priority", "arguments", "time"],
)
def test_bad_parameters_are_refused(site: httpx.Client, action: str, body: dict[str, object]) -> None:
    assert site.post(f"/api/v1/actions/{action}", json=body).status_code == 422
    form = {name: value if isinstance(value, list) else str(value) for name, value in body.items()}
    if "more" not in body:
        assert "<dialog" in site.post(f"/actions/{action}", data=form).text


def test_an_action_that_there_is_not(site: httpx.Client) -> None:
    assert site.get("/actions/explode").status_code == 404
    assert site.post("/api/v1/actions/explode", json={}).status_code == 404


def test_a_page_that_is_read_only_does_nothing(url: str, tmp_path: Path, client: QueueClient) -> None:
    client.create("kept")
    client.send("kept", "x")
    with children() as started:
        started.add(server := PageServer(tmp_path, url, "--read-only"))
        told = httpx.post(f"{server.url}actions/purge", data={"queue": "kept", "typed_again": "kept"}, timeout=60)
        assert "read-only" in told.text
    assert client.metrics("kept").ready == 1


@pytest.mark.parametrize("hours", ["1e9", "inf", "nan", "-1", "soon"])
@pytest.mark.parametrize("path", ["/failed", "/api/v1/failures"], ids=["page", "api"])
def test_hours_that_no_calendar_has_are_refused(site: httpx.Client, path: str, hours: str) -> None:
    assert site.get(path, params={"hours": hours}).status_code == 422


def test_groups_have_buttons_but_not_with_an_unread_filter(site: httpx.Client, client: QueueClient) -> None:
    client.create("failing")
    client.send_batch("failing", ["x", "y"])
    for message in client.read("failing", 60, 2):
        client.reject("failing", message)
    page = site.get("/failed", params={"queue": "failing"}).text
    assert page.count("actions/delete-failures") == 3  # of the group, of what is selected, of all
    assert "actions/delete-failures?tasks=%28none%29" in page
    unread = site.get("/failed", params={"queue": "failing", "where": "task ="}).text
    assert unread.count("actions/delete-failures") == 1
    by_queue = site.get("/failed", params={"queue": "failing", "by": "queue"}).text
    assert by_queue.count("actions/delete-failures") == 3
