"""Queues with a filter, through Kombu and Celery, over restarts and kill -9."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import celery
import kombu
import pytest

from kombu_opendata.errors import OpenDataError, PreconditionFailed, SelectorError
from kombu_opendata.storage.records.keys import RecordKind
from tests.support.broker import EmbeddedBroker
from tests.support.kombu_client import connected, declare, drain_until, send, take, take_bodies
from tests.support.plain_store import PlainStore

entities: Any = kombu  # which is not typed


@pytest.fixture
def name() -> str:
    """A name that no other test has, and that needs no quotes in a filter."""
    return f"q_{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def folder(module_store_folder: Path) -> Path:
    return module_store_folder


def filtered(channel: Any, name: str, text: str, mode: str | None = None, **properties: Any) -> Any:
    """A queue with a filter."""
    arguments = {"x-filter": text} if mode is None else {"x-filter": text, "x-filter-mode": mode}
    return declare(channel, name, arguments=arguments, **properties)


def mandatory(channel: Any, key: str, headers: Mapping[str, Any], body: str = "body", exchange: str = "") -> int:
    """Publish, and return how many queues got it."""
    message = channel.prepare_message(body, headers=dict(headers))
    return int(channel.basic_publish(message, exchange=exchange, routing_key=key, mandatory=True).queues)


def test_kombus_queue_arguments(connection: Any, name: str) -> None:
    with connection.channel() as channel:
        arguments = {"x-filter": f"{name} = 'yes' AND pages >= 10"}
        queue = entities.Queue(f"{name}.long", queue_arguments=arguments, channel=channel)
        queue.declare()
        producer = entities.Producer(channel, serializer="json")
        for pages in (9, 10, 11.5, "12", "many", None):
            producer.publish({"pages": pages}, routing_key=f"{name}.nobody", headers={name: "yes", "pages": pages})
        producer.publish({"pages": 0}, routing_key=f"{name}.long", headers={name: "yes", "pages": 0})
        assert [message.payload["pages"] for message in take(channel, queue.name)] == [10, 11.5, "12", 0]


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "transient"])
def test_one_message_for_all_that_match(channel: Any, name: str, durable: bool) -> None:
    for number in (1, 2, 3):
        filtered(channel, f"{name}.{number}", f'"{name}" >= {number}', durable=durable)
    declare(channel, f"{name}.plain")
    assert mandatory(channel, f"{name}.plain", {name: 2}, "two") == 3
    assert mandatory(channel, "nobody", {name: 3}, "three") == 3
    assert mandatory(channel, f"{name}.1", {name: 3}, "one") == 3  # bound and filtered: once
    assert take_bodies(channel, f"{name}.1") == ["two", "three", "one"]
    assert take_bodies(channel, f"{name}.2") == ["two", "three", "one"]
    assert take_bodies(channel, f"{name}.3") == ["three", "one"]
    assert take_bodies(channel, f"{name}.plain") == ["two"]
    with pytest.raises(OpenDataError, match="no queue takes"):
        mandatory(channel, "nobody", {name: 0})


def test_mode_all_lets_pass_what_bindings_give(channel: Any, name: str) -> None:
    filtered(channel, name, "level > 3", "all")
    declare(channel, f"{name}.all")
    for queue in (name, f"{name}.all"):
        channel.queue_bind(queue, "amq.topic", f"{name}.#")
    for level in (3, 4, "high"):
        send(channel, f"{name}.x", str(level), exchange="amq.topic", headers={"level": level})
        send(channel, "elsewhere", str(level), headers={"level": level})
    send(channel, name, "5", headers={"level": 5})  # its own name is a binding too
    assert take_bodies(channel, name) == ["4", "5"]
    assert take_bodies(channel, f"{name}.all") == ["3", "4", "high"]
    with pytest.raises(OpenDataError, match="no queue takes"):
        mandatory(channel, name, {"level": 1})


def test_what_a_filter_takes_is_routed(channel: Any, name: str) -> None:
    """The alternate exchange gets what bindings and filters leave."""
    channel.exchange_declare(f"{name}.rest", "fanout", durable=True, auto_delete=False)
    rest = {"alternate-exchange": f"{name}.rest"}
    channel.exchange_declare(name, "direct", durable=True, auto_delete=False, arguments=rest)
    declare(channel, f"{name}.rest")
    channel.queue_bind(f"{name}.rest", f"{name}.rest")
    filtered(channel, f"{name}.taking", f"{name} = 'take'")
    filtered(channel, f"{name}.choosy", "colour = 'red'", "all")
    channel.queue_bind(f"{name}.choosy", name, "k")
    for colour, take_it in (("red", "take"), ("red", "no"), ("blue", "take"), ("blue", "no")):
        send(channel, "k", f"{colour} {take_it}", exchange=name, headers={"colour": colour, name: take_it})
    assert take_bodies(channel, f"{name}.taking") == ["red take", "blue take"]
    assert take_bodies(channel, f"{name}.choosy") == ["red take", "red no"]
    assert take_bodies(channel, f"{name}.rest") == ["blue no"]
    with pytest.raises(OpenDataError, match="no exchange"):
        mandatory(channel, "k", {name: "take"}, exchange=f"{name}.nowhere")


def test_a_dead_letter_does_not_come_back_by_the_filter(connection: Any, channel: Any, name: str) -> None:
    declare(channel, f"{name}.dead")
    arguments = {"x-filter": f"{name} = 'x'", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}.dead"}
    declare(channel, name, arguments=arguments)
    filtered(channel, f"{name}.beside", f"{name} = 'x'")
    filtered(channel, f"{name}.watch", f"\"x-first-death-queue\" = '{name}' AND \"x-first-death-reason\" = 'rejected'")
    send(channel, "nobody", "letter", headers={name: "x"})
    channel.basic_get(name).reject()
    got: list[Any] = []
    channel.basic_consume(f"{name}.dead", callback=got.append)
    drain_until(connection, lambda: len(got) == 1)
    assert take_bodies(channel, name) == []
    assert take_bodies(channel, f"{name}.beside") == ["letter"]
    assert take_bodies(channel, f"{name}.watch") == ["letter"]


def test_declaring_again(channel: Any, name: str) -> None:
    filtered(channel, name, "a = 1")
    filtered(channel, name, "a = 1")
    with pytest.raises(PreconditionFailed, match="with x-filter='a = 1', declared again with x-filter='a = 2'"):
        filtered(channel, name, "a = 2")
    with pytest.raises(PreconditionFailed, match="declared again without x-filter"):
        declare(channel, name)
    with pytest.raises(PreconditionFailed, match="x-filter-mode"):
        filtered(channel, name, "a = 1", "any")


@pytest.mark.parametrize(
    ("text", "line", "column", "what"),
    [
        ("level >", 1, 8, "but the filter ends"),
        ("level = 1 AND\n  level == 2", 2, 10, "found ="),
        ("upper(level) = 'A'", 1, 1, "there is no function upper"),
        ("a = 1 OR " * 1_000 + "a = 1", 1, 2251, "more than 500 headers and constants"),
        ("(" * 5_000 + "a" + ")" * 5_000, 1, 25, "nested more than 24 levels"),
        ("a = '\0'", 1, 6, "U.0000 can't be part"),
        ("a LIKE 'x!y' ESCAPE '!'", 1, 8, "must be followed by %, _ or !"),
        ("a = 1e999", 1, 5, "the number is too large"),
    ],
)
def test_filters_that_are_none(channel: Any, name: str, text: str, line: int, column: int, what: str) -> None:
    with pytest.raises(SelectorError, match=what) as caught:
        filtered(channel, name, text)
    error: Any = caught.value
    assert (error.line, error.column, error.queue) == (line, column, name)
    assert error.caret.splitlines()[1].strip() == "^"
    assert error.caret in str(error)
    with pytest.raises(OpenDataError, match="no queue"):
        channel.queue_declare(name, passive=True)


def test_a_filter_that_does_not_fit_its_record_with_the_bindings(channel: Any, name: str) -> None:
    filtered(channel, name, "a = '" + "x" * 16_000 + "'")
    with pytest.raises(OpenDataError, match=r"too many bindings: its filter would have .* the limit is 65535"):
        bind_until_refused(channel, name)
    send(channel, "nobody", "still there", headers={"a": "x" * 16_000})
    assert take_bodies(channel, name) == ["still there"]


def bind_until_refused(channel: Any, queue: str) -> None:
    for number in range(1_000):
        channel.queue_bind(queue, "amq.direct", f"{number}" + "k" * 240)


def test_over_a_kill(folder: Path, channel: Any, name: str) -> None:
    """Filters are back with the queues, deleted ones are not."""
    filtered(channel, name, f"{name} LIKE 'a!%%' ESCAPE '!'")
    filtered(channel, f"{name}.all", f"{name} LIKE '%b'", "all")
    filtered(channel, f"{name}.gone", f"{name} IS NOT NULL")
    channel.queue_declare(f"{name}.transient", auto_delete=False, arguments={"x-filter": f"{name} IS NOT NULL"})
    send(channel, f"{name}.all", "a%b", headers={name: "a%b"})
    channel.queue_delete(f"{name}.gone")
    for _ in range(2):
        EmbeddedBroker(folder).kill()
        send(channel, f"{name}.all", "a%b", "a%b", headers={name: "a%b"})
        send(channel, "nobody", "a%c", headers={name: "a%c"})
    assert take_bodies(channel, name) == ["a%b", "a%b", "a%b", "a%c", "a%b", "a%b", "a%c"]
    assert take_bodies(channel, f"{name}.all") == ["a%b"] * 5
    assert take_bodies(channel, f"{name}.transient") == ["a%b", "a%b", "a%c"]  # declared again by its client
    channel.queue_delete(name)
    channel.queue_delete(f"{name}.all")
    channel.queue_delete(f"{name}.transient")
    with pytest.raises(OpenDataError, match="no queue takes"):
        mandatory(channel, "nobody", {name: "a%b"})


def test_through_celery(broker_url: str, store_folder: Path) -> None:
    """A task that is sent to one queue is in every queue whose filter it meets, and runs from there."""
    app: Any = celery.Celery("filters", broker=broker_url)
    audit = entities.Queue(
        "audit", durable=True, queue_arguments={"x-filter": "task LIKE 'billing.%' AND priority >= 5 AND retries = 0"}
    )
    with connected(broker_url) as connection, connection.channel() as channel:
        audit(channel).declare()
        with app.pool.acquire(block=True) as publisher:
            for task, priority in (("billing.send", 7), ("billing.send", 1), ("mail.send", 9)):
                app.send_task(task, args=[priority], priority=priority, connection=publisher)
        assert [message.headers["task"] for message in take(channel, "audit")] == ["billing.send"]
        assert len(take(channel, "celery")) == 3
        EmbeddedBroker(store_folder).terminate()
        app.send_task("billing.send", args=[6], priority=6)
        assert [message.payload[0] for message in take(channel, "audit")] == [[6]]  # the first is still held
    app.close()


def test_the_config_record_says_the_whole_filter(broker_url: str, store_folder: Path) -> None:
    with connected(broker_url) as connection, connection.channel() as channel:
        filtered(channel, "either", "a = 1 OR b = 2")
        filtered(channel, "both", "a = 1 OR b = 2", "all")
        channel.queue_bind("both", "amq.topic", "x.#")
    EmbeddedBroker(store_folder).terminate()
    configs = PlainStore(store_folder).of[RecordKind.CONFIG]
    assert {name: found.filter for name, found in configs.items()} == {
        "either": "(exchange = '' AND routing_key = 'either') OR (a = 1 OR b = 2)",
        "both": "((exchange = '' AND routing_key = 'both') OR "
        "(exchange = 'amq.topic' AND topic(routing_key, 'x.#'))) AND (a = 1 OR b = 2)",
    }
