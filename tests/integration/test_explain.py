"""Why a queue gets a message or not, asked of a real broker; and filters that are long to compile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kombu_opendata.errors import NotFound, RequestError, SelectorError
from kombu_opendata.protocol.framing import frame
from kombu_opendata.protocol.messages import Bind, Count, DeclareQueue, Explain, Explained, Failed, Ok, PurgeQueue
from kombu_opendata.queue_client.reading import Reading
from kombu_opendata.selectors import Explanation
from tests.support.broker import EmbeddedBroker
from tests.support.kombu_client import declare, send
from tests.support.raw import RawClient, publish


@pytest.fixture
def ask(connection: Any) -> Any:
    """Asks the broker of the module's connection."""
    client = object.__new__(Reading)
    client.calls = SimpleNamespace(call=connection.connection.call)  # type: ignore[assignment]
    return client.explain


def publish_one(channel: Any, key: str, exchange: str = "", **headers: Any) -> int:
    message = channel.prepare_message("body", headers=headers)
    return int(channel.basic_publish(message, exchange=exchange, routing_key=key).message_id)


def test_a_message_and_a_filter(channel: Any, name: str, ask: Any) -> None:
    declare(channel, name, arguments={"x-filter": "kind = 'a' AND (pages > 10 OR NOT draft)"})
    declare(channel, f"{name}.other")
    first = publish_one(channel, f"{name}.other", kind="a", pages=11)
    second = publish_one(channel, f"{name}.other", kind="a", pages="few")
    report = ask(name, id=first)
    assert (report["queue"], report["matches"], report["mode"]) == (name, True, "any")
    found = Explanation.from_dict(report["filter"])
    assert str(found).splitlines() == [
        "true: kind = 'a' AND (pages > 10 OR NOT (draft))",
        "  true: kind = 'a'   (kind is 'a')",
        "  true: pages > 10 OR NOT (draft)",
        "    true: pages > 10   (pages is 11)",
        "    unknown: NOT (draft)",
        "      unknown: draft   (draft is missing)",
    ]
    (binding,) = report["bindings"]
    assert (binding["exchange"], binding["type"], binding["routing_key"]) == ("", "direct", name)
    assert binding["matches"] is False
    report = ask(name, id=second)
    assert (report["matches"], report["filter"]["value"]) == (False, None)
    report = ask(f"{name}.other", id=second)
    assert (report["matches"], report["mode"], report["filter"]) == (True, None, None)
    assert report["bindings"][0]["matches"] is True


def test_given_headers(channel: Any, name: str, ask: Any) -> None:
    declare(channel, name, arguments={"x-filter": "n >= 2", "x-filter-mode": "all"})
    channel.queue_bind(name, "amq.topic", "a.*")
    headers = {"exchange": "amq.topic", "routing_key": "a.b"}
    assert ask(name, headers=headers)["matches"] is False
    report = ask(name, headers={**headers, "n": "2"})
    assert report["matches"] is True
    assert [(each["type"], each["matches"]) for each in report["bindings"]] == [("topic", True), ("direct", False)]
    assert ask(name, headers={"routing_key": name, "n": "2"})["matches"] is True
    assert ask(name, headers={"exchange": "nowhere", "n": "2"})["matches"] is False


def test_headers_bindings_are_compared_with_types_where_the_message_is_there(channel: Any, name: str, ask: Any) -> None:
    declare(channel, name)
    channel.queue_bind(name, "amq.headers", arguments={name: 5})
    assert publish_one(channel, "", "amq.headers", **{name: "5"}) == 0, "taken by no queue"
    stored = publish_one(channel, "", "amq.headers", **{name: 5})
    assert ask(name, id=stored)["bindings"][0]["matches"] is True
    as_text = publish_one(channel, name, **{name: "5"})
    report = ask(name, id=as_text)
    assert [(each["type"], each["matches"]) for each in report["bindings"]] == [("direct", True), ("headers", False)]


def test_an_answer_is_bounded(channel: Any, name: str, ask: Any) -> None:
    members = " OR ".join(f"h{number} = '{'x' * 20}'" for number in range(240))
    declare(channel, name, arguments={"x-filter": members})
    for number in range(60):
        channel.queue_bind(name, "amq.direct", f"{number}")
    report = ask(name, headers={"exchange": "amq.direct", "routing_key": "59", "h1": "y" * 60_000})
    assert report["matches"] is True
    assert (len(report["bindings"]), report["bindings_omitted"]) == (50, 11)
    assert report["bindings"][0]["routing_key"] == "59", "what matches comes first"
    assert len(report["filter"]["parts"]) == 240
    assert len(report["filter"]["text"]) < 250
    assert len(report["filter"]["parts"][1]["headers"]["h1"]) < 250


def test_a_filter_alone(ask: Any) -> None:
    report = ask(filter="a LIKE 'x%' AND b IS NULL", headers={"a": "xy"})
    assert report["matches"] is True
    assert [part["value"] for part in report["filter"]["parts"]] == [True, True]
    assert ask(filter="a = 1")["filter"] == {"text": "a = 1", "value": None, "headers": {"a": None}}
    with pytest.raises(SelectorError, match="line 1, column 4"):
        ask(filter="a =")


def test_what_can_not_be_explained(channel: Any, name: str, ask: Any) -> None:
    declare(channel, name)
    with pytest.raises(NotFound, match="no queue 'nowhere'"):
        ask("nowhere")
    with pytest.raises(NotFound, match=r"no message 1000000000000 is stored"):
        ask(name, id=10**12)
    for arguments in ({}, {"queue": name, "filter": "a = 1"}, {"queue": name, "id": 1, "headers": {"a": "b"}}):
        with pytest.raises(RequestError, match=r"nothing to explain|not both"):
            ask(**arguments)
    for message_id in (-5, 1 << 63):
        with pytest.raises(RequestError, match="a message id must be"):
            ask(name, id=message_id)


def test_after_a_restart(module_store_folder: Path, channel: Any, name: str, ask: Any) -> None:
    declare(channel, name, arguments={"x-filter": f"\"{name}\" = 'x'"})
    stored = publish_one(channel, "nobody", **{name: "x"})
    EmbeddedBroker(module_store_folder).kill()
    assert ask(name, id=stored)["matches"] is True
    send(channel, name, "still works")


# ---------------------------------------------------------------------- in the order they were sent
LONG = " AND ".join(f"NOT (a{number} = {number})" for number in range(240))


def test_what_follows_a_long_declaration_waits_for_it(connection: Any, module_store_folder: Path, name: str) -> None:
    """All in one write, as a client does that resumes."""
    with RawClient(str(module_store_folder / "broker.sock")) as client:
        client.hello()
        messages = [
            DeclareQueue(101, name, True, False, False, {"x-filter": f"b = 'x' AND {LONG}"}, False),
            Bind(102, name, "amq.direct", name, {}),
            DeclareQueue(103, f"{name}.bad", True, False, False, {"x-filter": f"b == 'x' AND {LONG}"}, False),
            publish("", 1, exchange="amq.direct", headers={}),
            Explain(105, "", -1, {}, f"b = 'y' AND {LONG}"),
            PurgeQueue(106, name),
        ]
        messages[3].routing_key, messages[3].rid = name, 104  # type: ignore[attr-defined]
        client.send_bytes(b"".join(map(frame, messages)))
        found: dict[int, Any] = {}
        while len(found) < len(messages):  # the explanation is made in a thread
            message: Any = client.receive()
            found[message.rid] = message
    answers = [found[rid] for rid in sorted(found)]
    assert [type(answer) for answer in answers[1:3]] == [Ok, Failed]
    assert answers[2].code == "bad_selector"
    assert answers[3].queues == 1
    assert isinstance(answers[4], Explained)
    assert answers[5] == Count(106, 1)


def test_a_client_that_goes_while_its_filter_is_compiled(
    connection: Any, channel: Any, module_store_folder: Path, name: str
) -> None:
    with RawClient(str(module_store_folder / "broker.sock")) as client:
        client.hello()
        client.send(DeclareQueue(0, name, True, False, False, {"x-filter": f"c = 'x' AND {LONG}"}, False))
    declare(channel, f"{name}.after")
