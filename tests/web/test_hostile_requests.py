"""Requests that no browser and no sensible program sends: each is refused in the one form of errors."""

from __future__ import annotations

import zlib

import httpx
import pytest

from kombu_opendata import QueueClient

ERRORS = {"code", "message", "values", "what_to_do"}
#: more digits than Python makes a number of
DIGITS = "9" * 5000
#: more brackets than Python's JSON reads
DEEP = "[" * 100_000


@pytest.fixture(scope="module")
def site(http: httpx.Client, client: QueueClient) -> httpx.Client:
    client.create("mail")
    return http


def refused(answer: httpx.Response, status: int) -> None:
    """In the form that the address has."""
    assert answer.status_code == status, answer.text
    if "/api/" in str(answer.url):
        assert set(answer.json()) == ERRORS
    else:
        assert answer.headers["content-type"].startswith("text/html")
        assert "Internal error" not in answer.text


@pytest.mark.parametrize("path", ["api/v1/queues", "queue?name=mail"])
@pytest.mark.parametrize("host", ["[", "[::1", "http://["])
def test_a_host_that_is_none(site: httpx.Client, path: str, host: str) -> None:
    refused(site.get(path, headers={"Host": host}), 421)


@pytest.mark.parametrize("path", ["api/v1/actions/purge", "actions/purge"])
def test_an_origin_that_is_none(site: httpx.Client, path: str) -> None:
    refused(site.post(path, json={"queue": "mail"}, headers={"Origin": "http://["}), 403)


def test_a_referer_that_is_none(site: httpx.Client) -> None:
    refused(site.get("nowhere", headers={"Referer": "http://[::1"}), 404)


def test_a_password_that_is_no_base64(site: httpx.Client) -> None:
    answer = site.get("api/v1/session", headers={b"Authorization": b"Basic \xff"})
    refused(answer, 403)


@pytest.mark.parametrize("path", ["api/v1/actions/purge", "actions/purge", "nowhere"])
def test_a_form_with_too_many_fields(site: httpx.Client, path: str) -> None:
    form = {f"f{number}": "" for number in range(6000)}
    answer = site.post(path, data=form, headers={"Origin": str(site.base_url).rstrip("/")})
    refused(answer, 413)
    assert "5,000 fields" in answer.text


def test_numbers_with_too_many_digits(site: httpx.Client) -> None:
    assert site.get("queue", params={"name": "mail", "after": DIGITS}).status_code == 200
    assert "Give the number of a message" in site.get("filters/explain", params={"id": DIGITS}).text
    refused(site.get("message", params={"id": DIGITS}), 422)
    refused(site.get("api/v1/message", params={"id": DIGITS}), 422)


@pytest.mark.parametrize("path", ["api/v1/actions/move", "api/v1/actions/send/preview"])
@pytest.mark.parametrize(
    "content_types",
    [
        ["application/json"], ["text/plain"], ["application/vnd.x+json"], ["application/json; charset=form"],
        ["application/json", "application/x-www-form-urlencoded"],
    ],
)  # fmt: skip
def test_json_with_too_many_elements(site: httpx.Client, path: str, content_types: list[str]) -> None:
    text = b'{"queue": "mail", "target": "mail", "ids": [' + b"{}," * 300_000 + b"{}]}"
    answer = site.post(path, content=text, headers=[("Content-Type", each) for each in content_types])
    refused(answer, 413)
    assert "250,000 elements" in answer.text


def test_a_json_text_with_too_many_elements_in_a_parameter(site: httpx.Client) -> None:
    given = {"queue": "mail", "headers": '{"a": [' + "[]," * 10_000 + "[]]}"}
    answer = site.post("api/v1/actions/send", json=given)
    refused(answer, 422)
    assert "10,000 elements" in answer.text


def test_a_text_of_many_commas_is_sent(site: httpx.Client) -> None:
    assert site.post("api/v1/actions/send", json={"queue": "mail", "body": "a,[" * 300_000}).status_code == 200


def test_a_decompression_bomb_is_shown_as_a_sentence(site: httpx.Client, url: str) -> None:
    bomb = zlib.compress(b"[" + b"{}," * 3_000_000 + b"{}]")
    with QueueClient(url) as client:
        number = client.send("mail", bomb, {"compression": "application/x-gzip"})
    told = site.get("api/v1/message", params={"id": number}).json()["body"]
    assert (told["kind"], told["size"]) == ("too large", len(bomb))
    page = site.get("message", params={"id": number})
    assert "too large to display" in page.text
    assert "decompress it yourself with `pigz -dz`." in page.text
    assert site.get("message/body", params={"id": number}).content == bomb


def test_json_that_is_nested_too_deep_is_sent_as_text(site: httpx.Client, url: str) -> None:
    done = site.post("api/v1/actions/send", json={"queue": "mail", "body": DEEP})
    assert done.status_code == 200, done.text
    shown = site.get("api/v1/message", params={"id": done.json()["counts"]["id"]}).json()
    assert (shown["body"]["kind"], shown["body"]["size"]) == ("text", len(DEEP))


def test_a_header_nested_deeper_than_json_is_read(site: httpx.Client) -> None:
    answer = site.get("api/v1/exchanges/route", params={"name": "amq.topic", "headers": "deep:=" + DEEP[:10_000]})
    assert answer.status_code < 500
    assert "has no valid JSON" in answer.text
