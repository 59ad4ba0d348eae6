"""The JSON API as a whole: it can all that the pages can, its description is valid, and all errors have one form."""

from __future__ import annotations

import asyncio
import html
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from kombu_opendata import QueueClient
from kombu_opendata.queue_client.queue_options import QueueOptions
from kombu_opendata.web import create_app
from kombu_opendata.web.actions import ACTIONS
from kombu_opendata.web.app import VIEWS, api_description
from kombu_opendata.web.reports import attention_rules

from ..support.processes import wait_until

ERRORS = {"code", "message", "values", "what_to_do"}
#: pages whose report has another name in the API
RENAMED = {"/": "/queues", "/failed": "/failures"}
#: dialogs, which ``/actions`` has; what leads to a page; what belongs to the page alone; and a file, the same for both
WITHOUT_REPORT = re.compile(r"/actions/\{name\}|/jump|/jobs/\{id\}/cancel|/message/body|/log(in|out)")


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return api_description()


@pytest.fixture(scope="module")
def site(http: httpx.Client, client: QueueClient) -> httpx.Client:
    client.create("mail")
    return http


# ---------------------------------------------------------------------- all that pages can
def test_each_page_has_its_report_in_the_api(described: dict[str, Any]) -> None:
    pages = {route.path for views in VIEWS for route in views.pages.routes if isinstance(route, APIRoute)}
    missing = {
        page
        for page in pages
        if not WITHOUT_REPORT.fullmatch(page) and "get" not in described["paths"].get(RENAMED.get(page, page), {})
    }
    assert missing == set()
    assert len(pages) > 5


def test_each_action_has_two_routes(described: dict[str, Any]) -> None:
    for name in ACTIONS:
        for path in (f"/actions/{name}", f"/actions/{name}/preview"):
            assert "post" in described["paths"][path]


# ---------------------------------------------------------------------- its description
def test_the_description_is_valid(site: httpx.Client) -> None:
    from openapi_spec_validator import validate  # for seconds, which each process that collects the tests would take

    validate(site.get("/api/v1/openapi.json").raise_for_status().json())


def test_everything_is_described(described: dict[str, Any]) -> None:
    calls = [(path, method, call) for path, ways in described["paths"].items() for method, call in ways.items()]
    assert [(path, method) for path, method, call in calls if not call.get("summary")] == []
    assert [path for path, method, call in calls if method == "get" and not call.get("description")] == []
    assert len({call["operationId"] for _path, _method, call in calls}) == len(calls)
    for _path, _method, call in calls:
        refused = call["responses"]["404"]["content"]["application/json"]["schema"]["$ref"]
        assert refused.endswith("/Fault")
        assert call["responses"]["422"]["content"]["application/json"]["schema"]["$ref"] == refused
    assert set(described["components"]["schemas"]["Fault"]["properties"]) == ERRORS


# ---------------------------------------------------------------------- its errors
@pytest.mark.parametrize(
    ("way", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "no_such_address"),
        ("DELETE", "/queues", 405, "method_not_allowed"),
        ("GET", "/exchange?name=nope", 404, "not_found"),
        ("GET", "/exchange", 422, "bad_request"),
        ("GET", "/workers?page=x", 422, "bad_request"),
        ("GET", "/worker?id=zz", 404, "not_found"),
        ("GET", "/exchanges/route?headers=x", 422, "bad_request"),
        ("GET", "/failures?taks=mail.letter", 422, "bad_request"),
        ("GET", "/store?page=2", 422, "bad_request"),
        ("POST", "/actions/delete-exchange", 422, "bad_request"),
    ],
)
def test_errors_have_one_form(way: str, path: str, status: int, code: str, site: httpx.Client) -> None:
    answer = site.request(way, f"/api/v1{path}")
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert set(answer.json()) == ERRORS
    assert answer.json()["message"]


def test_an_error_has_its_values(site: httpx.Client) -> None:
    told = site.get("/api/v1/exchange", params={"name": "nope"}).json()
    assert told["values"] == {"exchange": "nope"}
    assert "'nope'" in told["message"]


def test_an_action_with_nothing_left_to_do_is_a_conflict(site: httpx.Client) -> None:
    answer = site.post("/api/v1/actions/delete-exchange", json={"exchange": "nope"})
    assert (answer.status_code, answer.json()["code"]) == (409, "precondition_failed")


def test_ids_are_also_texts_as_those_of_transient_queues_are_large(url: str, site: httpx.Client) -> None:
    with QueueClient(url) as client:
        client.create("passing", QueueOptions(durable=False, auto_delete=True))
        (id,) = client.send_batch("passing", ["x"])
        told = site.get("/api/v1/messages", params={"queue": "passing", "state": "ready"}).json()
    assert id > 1 << 53
    assert [(one["id"], one["id_text"]) for one in told["rows"]] == [(id, str(id))]


# ---------------------------------------------------------------------- the same on pages
def test_pages_say_what_is_wrong_and_lead_back(site: httpx.Client) -> None:
    lost = site.get("/nowhere")
    assert lost.status_code == 404
    assert '<a href="/">Overview</a>' in lost.text
    gone = site.get("/exchange", params={"name": "<b>nope"}, headers={"Referer": f"{site.base_url}exchanges?search=n"})
    assert gone.status_code == 404
    assert "&lt;b&gt;nope" in gone.text
    assert 'href="/exchanges?search=n"' in gone.text
    wrong = site.get("/workers", params={"page": "x"})
    assert wrong.status_code == 422
    assert "The parameter page must be a whole number." in wrong.text


def test_pages_lead_back_to_no_other_site(site: httpx.Client) -> None:
    gone = site.get("/nowhere", headers={"Referer": "https://example.org/exchanges"})
    assert "example.org" not in gone.text


# ---------------------------------------------------------------------- without a broker, and mistakes
def answers_of(app: FastAPI, *paths: str) -> list[httpx.Response]:
    """What an app in this process answers."""

    async def ask() -> list[httpx.Response]:
        through = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=through, base_url="http://localhost", timeout=60) as client:
            answers = [await client.get(path) for path in paths]
        await app.state.site.brokers.close()
        return answers

    return asyncio.run(ask())


def test_a_broker_that_is_away_is_a_bad_gateway(tmp_path: Path) -> None:
    app = create_app(f"opendata://{str(tmp_path / 'nobody.sock').replace('/', '%2F')}")
    answer, page = answers_of(app, "/api/v1/workers", "/workers")
    assert answer.status_code == 502
    assert int(answer.headers["Retry-After"]) >= 1
    assert set(answer.json()) == ERRORS
    assert page.status_code == 503
    assert "does not answer" in page.text


@pytest.mark.parametrize("place", ["", "/api/v1"])
def test_a_mistake_has_a_number_that_is_in_the_log(place: str, caplog: pytest.LogCaptureFixture) -> None:
    app = create_app("opendata:///nowhere/that/is")

    async def broken() -> None:
        raise ZeroDivisionError("a secret")

    (app.state.api if place else app).add_api_route("/broken", broken)
    (answer,) = answers_of(app, f"{place}/broken")
    assert answer.status_code == 500
    assert "a secret" not in answer.text
    number = re.search(r"error ([0-9a-f]{8})", answer.text)
    assert number is not None
    assert f"error {number[1]}" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_the_partitions_of_a_queue(client: QueueClient, site: httpx.Client) -> None:
    client.create("tenants", QueueOptions(partition_by="tenant"))
    for tenant in ("acme", "acme", "<globex>"):
        client.send("tenants", 1, headers={"tenant": tenant})
    client.delay_key("tenants", 3600, key="acme")
    report = site.get("/api/v1/partitions", params={"queue": "tenants", "order": "key"}).json()
    rows = report["partitions"]["rows"]
    assert [(row["key"], row["backlog"]) for row in rows] == [("<globex>", 1), ("acme", 2)]
    assert (rows[1]["limited_by"], rows[1]["opens_at"][-1]) == ("delay", "Z")
    page = site.get("/partitions", params={"queue": "tenants", "search": "glob"}).text
    assert "&lt;globex&gt;" in page
    assert "partition-acme" not in page
    address = html.unescape(re.findall(r'href="([^"]*tab=failed[^"]*)"', page)[0])
    assert parse_qs(urlsplit(address).query)["where"] == ["tenant = '<globex>'"]
    (ready, _failed) = (html.unescape(each) for each in re.findall(r'href="([^"]*where=[^"]*)"', page))
    assert site.get(urljoin("/partitions", ready)).text.count('id="message-') == 1
    assert "partitions?queue=tenants" in site.get("/queue", params={"name": "tenants"}).text
    assert site.get("/api/v1/partitions", params={"queue": "nobody"}).status_code == 404
    client.send_batch("tenants", [1] * 1000, headers={"tenant": "acme"})
    wait_until(lambda: "flooding" in site.get("/api/v1/attention").text, 60, "the finding about the partition")


def test_small_partitions_that_starve_behind_a_large_one(
    client: QueueClient, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_rules, "STARVES_SECONDS", 0.001)
    client.create("starving", QueueOptions(partition_by="tenant"))
    client.send_batch("starving", [1] * 2000, headers={"tenant": "big"})
    client.send("starving", 1, headers={"tenant": "small"})
    client.send("starving", 1)
    for key in ("small", ""):
        client.delay_key("starving", 3600, key=key)

    def named() -> set[tuple[str, str]]:
        client.pop("starving")
        (answer,) = answers_of(create_app(url), "/api/v1/attention")
        return {(each["subject"], each["kind"]) for each in answer.json() if "queue starving" in each["text"]}

    expected = {("small", "starving"), ("(no value)", "starving"), ("big", "flooding")}
    wait_until(lambda: named() == expected, 60, "the findings about both partitions")
