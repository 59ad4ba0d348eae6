"""Dead-lettering over a real broker process: every reason, exactly once through kill -9, cycles, nowhere to go."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.errors import OpenDataError
from tests.support.broker import EmbeddedBroker, Watch
from tests.support.kombu_client import connected, declare, send, take_bodies
from tests.support.processes import wait_until

pytestmark = pytest.mark.contract(5)


@pytest.fixture(scope="module")
def folder(module_store_folder: Path) -> Path:
    return module_store_folder


def dead_letters_to(exchange: str, routing_key: str | None = None) -> dict[str, Any]:
    arguments = {"x-dead-letter-exchange": exchange}
    return arguments if routing_key is None else {**arguments, "x-dead-letter-routing-key": routing_key}


def wait_get(channel: Any, queue: str, *, no_ack: bool = True) -> Any:
    """The next message of a queue."""
    found: list[Any] = []

    def got() -> bool:
        message = channel.basic_get(queue, no_ack=no_ack)
        if message is not None:
            found.append(message)
        return bool(found)

    wait_until(got, 60, f"a message in {queue}")
    return found[0]


def counted(folder: Path, what: str) -> int:
    watch = Watch(folder)
    try:
        number: int = watch.report()["dead_letters"][what]
        return number
    finally:
        watch.close()


NAIVE, PRICE = datetime(2026, 1, 2, 3, 4, 5), Decimal("1.50")
STORED = {"durable": True, "auto_delete": False}
TRANSIENT = {"durable": False, "auto_delete": False}
kinds_of_queues = pytest.mark.parametrize("properties", [STORED, TRANSIENT], ids=["stored", "transient"])


@kinds_of_queues
def test_a_rejected_message(channel: Any, name: str, properties: dict[str, Any]) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    channel.queue_declare(name, arguments=dead_letters_to("", f"{name}.dead"), **properties)
    declare(channel, f"{name}.dead")
    send(
        channel,
        name,
        "body",
        headers={"mine": [1, {"a": NAIVE}], "price": PRICE},
        priority=7,
        expiration="600000",
        reply_to="me",
    )
    channel.basic_get(name).reject(requeue=False)
    message = wait_get(channel, f"{name}.dead")
    assert message.body == "body"
    assert message.properties == {"priority": 7, "reply_to": "me"}  # it has no expiration any more
    assert message.delivery_info["exchange"] == ""
    assert message.delivery_info["routing_key"] == f"{name}.dead"
    headers = message.headers
    death = headers.pop("x-death")[0]
    assert before <= death.pop("time") <= datetime.now(UTC)
    assert death == {
        "queue": name,
        "reason": "rejected",
        "count": 1,
        "exchange": "",
        "routing-keys": [name],
        "original-expiration": "600000",
    }
    assert headers == {
        "mine": [1, {"a": NAIVE}],
        "price": PRICE,
        "x-first-death-queue": name,
        "x-first-death-reason": "rejected",
        "x-first-death-exchange": "",
        "x-last-death-queue": name,
        "x-last-death-reason": "rejected",
        "x-last-death-exchange": "",
    }


@kinds_of_queues
def test_an_expired_message(channel: Any, name: str, properties: dict[str, Any]) -> None:
    """Without a routing key of the queue the message keeps its own."""
    channel.exchange_declare(f"{name}.x", "topic", durable=True, auto_delete=False)
    channel.queue_declare(name, arguments=dead_letters_to(f"{name}.x"), **properties)
    declare(channel, f"{name}.dead")
    channel.queue_bind(f"{name}.dead", f"{name}.x", "#")
    send(channel, name, "body", expiration="0")
    assert channel.basic_get(name) is None
    message = wait_get(channel, f"{name}.dead")
    assert message.delivery_info["exchange"] == f"{name}.x"
    assert message.delivery_info["routing_key"] == name
    assert message.headers["x-first-death-reason"] == "expired"


def test_a_message_without_attempts_left(channel: Any, name: str) -> None:
    declare(channel, name, arguments={**dead_letters_to("", f"{name}.dead"), "x-delivery-limit": 2})
    channel.queue_declare(f"{name}.dead", auto_delete=False)  # a transient one takes dead letters as well
    send(channel, name, "body")
    first = channel.basic_get(name)
    assert "x-delivery-count" not in first.headers
    first.requeue()
    second = channel.basic_get(name)
    assert second.headers["x-delivery-count"] == 1
    second.requeue()
    message = wait_get(channel, f"{name}.dead")
    assert message.headers["x-first-death-reason"] == "delivery_limit"
    assert "x-delivery-count" not in message.headers


def test_what_is_large_is_dead_lettered_too(channel: Any, name: str) -> None:
    declare(channel, name, arguments=dead_letters_to("", f"{name}.dead"))
    declare(channel, f"{name}.dead")
    body = b"x" * 3_000_000
    send(channel, name, body)
    channel.basic_get(name).reject()
    assert wait_get(channel, f"{name}.dead").body == body


def test_deaths_are_counted_by_queue_and_reason(channel: Any, name: str) -> None:
    """A consumer that rejects may have the message back as often as it likes."""
    work, wait = f"{name}.work", f"{name}.wait"
    declare(channel, work, arguments=dead_letters_to("", wait))
    channel.queue_declare(wait, auto_delete=False, arguments={**dead_letters_to("", work), "x-message-ttl": 1})
    send(channel, work, "body")
    for count in range(1, 5):
        message = wait_get(channel, work, no_ack=False)
        if count == 4:
            break
        message.reject()
    deaths = [(death["queue"], death["reason"], death["count"]) for death in message.headers["x-death"]]
    assert deaths == [(wait, "expired", 3), (work, "rejected", 3)]
    assert message.headers["x-first-death-queue"] == work
    assert message.headers["x-last-death-queue"] == wait
    message.ack()


def test_a_cycle_that_nobody_rejects_in_is_cut(folder: Path, channel: Any, name: str) -> None:
    before = counted(folder, "cycles")
    here, there = f"{name}.here", f"{name}.there"
    for queue, other in ((here, there), (there, here)):
        arguments = {**dead_letters_to("", other), "x-message-ttl": 1}
        channel.queue_declare(queue, auto_delete=False, arguments=arguments)
    send(channel, here, "body")
    wait_until(lambda: counted(folder, "cycles") == before + 1, 60, "a cut")
    assert channel.basic_get(here) is None
    assert channel.basic_get(there) is None
    log = (folder / "broker.log").read_text()
    assert log.count(f"dead letters of queue '{there}' are dropped: they were in '{here}' before") == 1


def test_nowhere_to_go(folder: Path, channel: Any, name: str) -> None:
    before = counted(folder, "unroutable")
    declare(channel, name, arguments=dead_letters_to(f"{name}.x"))
    send(channel, name, "one", "two")
    for _ in range(2):
        channel.basic_get(name).reject()
    wait_until(lambda: counted(folder, "unroutable") == before + 2, 60, "two dropped letters")
    assert (folder / "broker.log").read_text().count(f"there is no exchange '{name}.x'") == 1
    channel.exchange_declare(f"{name}.x", "fanout", durable=True, auto_delete=False)
    declare(channel, f"{name}.dead")
    send(channel, name, "three")
    channel.basic_get(name).reject()
    wait_until(lambda: counted(folder, "unroutable") == before + 3, 60, "a third dropped letter")
    channel.queue_bind(f"{name}.dead", f"{name}.x")
    send(channel, name, "four")
    channel.basic_get(name).reject()
    assert wait_get(channel, f"{name}.dead").body == "four"


def test_purged_messages_are_no_dead_letters(channel: Any, name: str) -> None:
    declare(channel, name, arguments=dead_letters_to("", f"{name}.dead"))
    declare(channel, f"{name}.dead")
    send(channel, name, "purged")
    assert channel.queue_purge(name) == 1
    send(channel, name, "rejected")
    channel.basic_get(name).reject()
    assert wait_get(channel, f"{name}.dead").body == "rejected"
    assert channel.basic_get(f"{name}.dead") is None


def test_a_letter_outlives_its_queue(channel: Any, name: str) -> None:
    declare(channel, name, arguments=dead_letters_to("", f"{name}.dead"))
    declare(channel, f"{name}.dead")
    send(channel, name, "body")
    channel.basic_get(name).reject()
    channel.queue_delete(name)
    assert wait_get(channel, f"{name}.dead").body == "body"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-dead-letter-exchange": 5}, "x-dead-letter-exchange must be a text, not 5"),
        ({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": True}, "x-dead-letter-routing-key must be a text"),
        ({"x-dead-letter-routing-key": "k"}, "no x-dead-letter-exchange"),
        ({"x-dead-letter-exchange": "é" * 128}, "256 bytes, the limit is 255"),
    ],
)
@kinds_of_queues
def test_wrong_arguments(
    channel: Any, name: str, properties: dict[str, Any], arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(OpenDataError, match=text):
        channel.queue_declare(name, arguments=arguments, **properties)
    with pytest.raises(OpenDataError, match="no queue"):
        channel.queue_declare(name, passive=True)


@pytest.mark.parametrize("arrived", [0, 1, 600])
def test_exactly_once_through_kill_9(store_folder: Path, arrived: int) -> None:
    """The broker is killed when so many letters have arrived."""
    broker = EmbeddedBroker(store_folder)
    bodies = [str(number) for number in range(600)]
    with connected(f"opendata://{store_folder}") as connection, connection.channel() as channel:
        declare(channel, "work", arguments=dead_letters_to("", "dead"))
        declare(channel, "dead")
        send(channel, "work", *bodies)
        for _ in bodies:
            channel.basic_get("work").reject()
        wait_until(lambda: channel._size("dead") >= arrived, 60, f"{arrived} letters")
        broker.kill()
        found: list[str] = []

        def all_there() -> bool:
            found.extend(take_bodies(channel, "dead"))
            return len(found) >= len(bodies)

        wait_until(all_there, 60, lambda: f"{len(found)} of {len(bodies)} letters")
        assert sorted(found, key=int) == bodies
        wait_until(lambda: counted(store_folder, "waiting") == 0, 60, "an empty outbox")
        assert take_bodies(channel, "dead") == []
        assert take_bodies(channel, "work") == []
