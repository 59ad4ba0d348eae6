"""Limits of a queue as its readers see them: slots, tokens and delays, with changes and a restart of the broker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import QueueClient, errors
from kombu_opendata.protocol.messages import DelayKey
from kombu_opendata.queue_client import Message, QueueOptions

from ..support.broker import EmbeddedBroker
from ..support.kombu_client import Inbox, connected, drain_until

pytestmark = pytest.mark.contract(16)

KINDS = pytest.mark.parametrize("durable", [True, False])


def bodies(messages: Iterable[Message]) -> list[Any]:
    return [message.body for message in messages]


@pytest.fixture
def client(module_store_folder: Path) -> Iterator[QueueClient]:
    with QueueClient(f"opendata://{module_store_folder}/store") as client:
        yield client


@KINDS
def test_a_slot_is_free_when_a_message_is_settled(client: QueueClient, name: str, durable: bool) -> None:
    client.create(name, QueueOptions(concurrency=2, durable=durable))
    client.send_batch(name, range(5))
    held = client.read(name, qty=5)
    assert bodies(held) == [0, 1]
    assert client.read(name, qty=5) == client.read(name, qty=5, where="task IS NULL") == []
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.read_with_poll, name, max_poll_seconds=60)
        client.archive(name, held[0])
        message = waiting.result()
    assert bodies(message) == [2]
    client.release(name, message[0])
    assert bodies(client.read(name, qty=5)) == [2]
    client.alter(name, {"x-concurrency": 1})
    client.archive(name, held[1])
    assert client.read(name, qty=5) == []
    client.alter(name, {"x-concurrency": 3})
    assert bodies(client.read(name, qty=5, where="task IS NULL")) == [3, 4]


@KINDS
def test_a_waiting_read_and_a_consumer_get_the_next_token(
    client: QueueClient, module_store_folder: Path, name: str, durable: bool
) -> None:
    client.create(name, QueueOptions(rate="1/h:2", durable=durable))
    client.send_batch(name, range(6))
    assert bodies(client.read(name, qty=5)) == [0, 1]
    assert client.read(name, qty=5) == []
    client.alter(name, {"x-rate": "5/s:1"})
    assert bodies(client.read_with_poll(name, max_poll_seconds=60)) == [2]
    inbox = Inbox()
    with connected(f"opendata://{module_store_folder}/store") as connection:
        inbox.consume(connection.default_channel, name)
        drain_until(connection, lambda: len(inbox.bodies) == 3)
    assert inbox.bodies == ["3", "4", "5"]


@KINDS
def test_a_delay_of_the_whole_queue(client: QueueClient, name: str, durable: bool) -> None:
    client.create(name, QueueOptions(durable=durable))
    client.send_batch(name, range(2))
    now = datetime.now(UTC)
    until = client.delay_key(name, timedelta(hours=1))
    assert until is not None
    assert until > now + timedelta(minutes=59)
    assert client.delay_key(name, 60) == until
    assert client.read(name) == []
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.read_with_poll, name, max_poll_seconds=60)
        assert client.delay_key(name, 0) is None
        assert bodies(waiting.result()) == [0]
    client.delay_key(name, 0.2)
    assert bodies(client.read_with_poll(name, max_poll_seconds=60)) == [1]


def test_a_delay_and_used_tokens_survive_a_kill(client: QueueClient, module_store_folder: Path, name: str) -> None:
    client.create(name, QueueOptions(rate="1/h:3"))
    client.create(f"{name}-delayed")
    client.send_batch(name, range(5))
    client.send(f"{name}-delayed", 0)
    client.archive_many(name, client.read(name, qty=2))
    client.delay_key(f"{name}-delayed", 3600)
    EmbeddedBroker(module_store_folder / "store").kill()
    assert bodies(client.read(name, qty=5)) == [2]
    assert client.read(f"{name}-delayed") == []
    client.delay_key(f"{name}-delayed", 0)
    assert bodies(client.read(f"{name}-delayed")) == [0]


def test_a_partition_is_limited_and_delayed_by_itself(client: QueueClient, name: str) -> None:
    client.create(name, QueueOptions(partition_by="tenant", partition_concurrency=1))
    for tenant in ("a", "a", "b"):
        client.send(name, tenant, headers={"tenant": tenant})
    held = client.read(name, qty=5)
    assert sorted(bodies(held)) == ["a", "b"]
    assert client.read(name, qty=5, where={"tenant": "a"}) == []
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.read_with_poll, name, max_poll_seconds=60, where={"tenant": "a"})
        client.archive_many(name, held)
        client.archive_many(name, waiting.result())
    for tenant in ("a", "b"):
        client.send(name, tenant, headers={"tenant": tenant})
    client.delay_key(name, 3600, key="a")
    assert bodies(client.read(name, qty=5)) == ["b"]
    client.send(name, "b", headers={"tenant": "b"})
    page = client.list_partitions(name)
    assert (page.by, page.matching, page.limited_by) == ("tenant", 2, "")
    assert [(row.key, row.backlog, row.in_flight, row.limited_by) for row in page.partitions] == [
        ("a", 1, 0, "delay"), ("b", 1, 1, "concurrency"),
    ]  # fmt: skip
    assert [row.opens_at is not None for row in page.partitions] == [True, False]
    assert all(row.share == 0.5 and row.oldest_age_seconds is not None for row in page.partitions)
    assert [row.key for row in client.list_partitions(name, search="b").partitions] == ["b"]
    assert [row.key for row in client.list_partitions(name, order="in_flight", limit=1).partitions] == ["b"]
    assert [row.key for row in client.list_partitions(name, order="oldest", offset=1).partitions] == ["b"]
    with pytest.raises(errors.RequestError, match="ordered by backlog"):
        client.list_partitions(name, order="size")  # type: ignore[arg-type]
    client.delay_key(name, 0, key="a")
    assert bodies(client.read(name, qty=5)) == ["a"]
    with pytest.raises(errors.NotFound, match="no partition with the key 'c'"):
        client.delay_key(name, 1, key="c")


def test_a_partition_that_holds_more_than_its_new_limit_waits(client: QueueClient, name: str) -> None:
    client.create(name, QueueOptions(partition_by="tenant"))
    client.send_batch(name, ["a"] * 4, [{"tenant": "a"}] * 4)
    held = client.read(name, qty=3)
    client.alter(name, {"x-partition-concurrency": 2})
    client.send_batch(name, ["b"] * 3, [{"tenant": "b"}] * 3)
    assert bodies(client.read(name, qty=5)) == ["b", "b"]
    client.archive(name, held[0])
    assert client.read(name, qty=5) == client.read(name, qty=5, where={"tenant": "a"}) == []
    client.archive(name, held[1])
    assert bodies(client.read(name, qty=5)) == ["a"]


def test_weights_of_unknown_keys_change_no_share(client: QueueClient, name: str) -> None:
    client.create(name, QueueOptions(partition_by="tenant", partition_weights={"nobody": 1000, "x" * 300: 1000}))
    client.send_batch(name, ["a", "b"] * 4, [{"tenant": "a"}, {"tenant": "b"}] * 4)
    assert {row.key: row.share for row in client.list_partitions(name).partitions} == {"a": 0.5, "b": 0.5}
    assert sorted(bodies(client.read(name, qty=4))) == ["a", "a", "b", "b"]


def test_a_message_that_has_ended_does_not_delay_other_keys(client: QueueClient, name: str) -> None:
    client.create(name, QueueOptions(partition_by="tenant"))
    client.send_batch(name, ["a", "b"], [{"tenant": "a"}, {"tenant": "b"}])
    ended = client.read(name)[0]
    client.archive(name, ended)
    with pytest.raises(errors.NotFound, match="not in flight"):
        client.calls.call(DelayKey(0, name, 3_600_000, None, ended.id))
    assert bodies(client.read(name)) == ["b"]


@pytest.mark.parametrize("before", [None, "shard"])
def test_a_message_that_was_delivered_before_an_alteration_delays_its_key(
    client: QueueClient, name: str, before: str | None
) -> None:
    client.create(name, QueueOptions(partition_by=before))
    client.send_batch(name, ["a0", "b0"], [{"tenant": "a"}, {"tenant": "b"}])
    delivered = client.read(name)[0]
    client.alter(name, {"x-partition-by": "tenant"})
    delayed = client.calls.call(DelayKey(0, name, 3_600_000, None, delivered.id))
    assert delayed.key == "a"
    client.send_batch(name, ["a1", "b1"], [{"tenant": "a"}, {"tenant": "b"}])
    messages = client.read_with_poll(name, max_poll_seconds=60)
    messages += client.read_with_poll(name, max_poll_seconds=60)
    assert sorted(bodies(messages)) == ["b0", "b1"]
    assert client.read(name) == []


@pytest.mark.parametrize("way", ["retry_delay", "release", "set_vt"])
def test_a_message_that_returns_with_a_delay_blocks_its_partition(
    client: QueueClient, module_store_folder: Path, name: str, way: str
) -> None:
    """A first delivery that is delayed does not."""
    client.create(name, QueueOptions(partition_by="tenant", partition_concurrency=1, retry_delay_seconds=3600))
    client.send(name, "a0", headers={"tenant": "a"}, delay=3600)
    for body in ("a1", "a2", "b1"):
        client.send(name, body, headers={"tenant": body[0]})
    first, other = client.read(name, qty=5)
    assert [first.body, other.body] == ["a1", "b1"]
    if way == "retry_delay":
        client.reject(name, first, requeue=True)
    elif way == "release":
        client.release(name, first, delay=3600)
    else:
        client.release(name, first)
        client.set_vt(name, first.id, 3600)
    EmbeddedBroker(module_store_folder / "store").kill()
    assert client.read(name, qty=5) == client.read(name, qty=5, where={"tenant": "a"}) == []
    (row,) = client.list_partitions(name, search="a").partitions
    assert (row.backlog, row.in_flight, row.limited_by) == (3, 0, "concurrency")
    assert row.opens_at is not None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.read_with_poll, name, max_poll_seconds=60)
        client.set_vt(name, first.id, 0)
        (again,) = waiting.result()
    assert again.body == "a1"
    client.archive(name, again)
    assert bodies(client.read(name, qty=5)) == ["a2"]


@pytest.mark.parametrize("seconds", [-1, 31 * 86_400, float("nan")])
def test_delays_that_are_not_valid(client: QueueClient, name: str, seconds: float) -> None:
    client.create(name)
    with pytest.raises(errors.RequestError):
        client.delay_key(name, seconds)
    with pytest.raises(errors.NotFound):
        client.delay_key(f"{name}-unknown", 1)
