"""Publishes with a unique key: decided once, whatever is read from the store, repeated or refused meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kombu_opendata.errors import InvalidMessage, RequestError, UniqueViolation, Unroutable
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.envelope import encode_envelope
from kombu_opendata.protocol.unique_key import HEADER, UNTIL_DONE, OnConflict, UniqueKey, unique_key_of
from tests.unit.broker.delivery.test_background import connect
from tests.unit.broker.model.test_queue import World, run

pytestmark = pytest.mark.contract(16)


class Client:
    """A session with a connection of its own."""

    def __init__(self, world: World, letter: bytes) -> None:
        world.new_session(letter)
        self.session, self.call = world.session, world.call
        self.told = connect(world)

    def publish(
        self, seq: int, task: str, mode: OnConflict = OnConflict.RETURN, *, queue: str = "q", key: str = "key",
        mandatory: bool = False,
    ) -> None:  # fmt: skip
        envelope = encode_envelope(b"body", None, None, {"id": task}, {}, "", queue)
        unique = UniqueKey(key, on_conflict=mode)
        self.call(m.Publish(seq, seq, "", queue, envelope, {}, 0, 1, mandatory=mandatory, unique=unique))


async def holder(client: Client, seq: int, task: str) -> int:
    """Publish a task that takes the key; return its message id."""
    client.publish(seq, task)
    stored = await client.told.next()
    assert stored == m.PublishConfirm(seq, stored.message_id, 1)
    return int(stored.message_id)


def test_of_two_producers_whose_key_is_read_only_the_first_stores() -> None:
    async def steps(world: World) -> None:
        first, second = Client(world, b"1"), Client(world, b"2")
        first.publish(1, "t1")
        second.publish(1, "t2")
        assert not len(world.queue.messages), "the key is being read"
        stored = await first.told.next()
        assert stored == m.PublishConfirm(1, stored.message_id, 1)
        assert await second.told.next() == m.PublishConfirm(1, stored.message_id, 0, "t1")
        assert len(world.queue.messages) == 1

    run(True, steps)


def test_a_key_that_is_known_before_it_was_read_changes_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep may end during the read, and show that the store has no keys."""

    async def steps(world: World) -> None:
        client, scan = Client(world, b"1"), world.engine.store.scan
        is_reading, may_read = asyncio.Event(), asyncio.Event()

        async def slow_scan(*arguments: Any, **options: Any) -> Any:
            is_reading.set()
            await may_read.wait()
            return await scan(*arguments, **options)

        monkeypatch.setattr(world.engine.store, "scan", slow_scan)
        client.publish(1, "old", OnConflict.REPLACE)
        await is_reading.wait()
        world.engine.state.idempotency.end_sweep()
        client.publish(2, "new", OnConflict.REPLACE)
        may_read.set()
        first, second = [await client.told.next() for _ in range(2)]
        assert (first.rid, second.rid) == (1, 2)
        assert list(world.queue.messages.available) == [second.message_id]

    run(True, steps)


def test_a_key_is_for_one_destination() -> None:
    """A user without the right to publish to a queue neither learns of its messages nor replaces them."""

    async def steps(world: World) -> None:
        client = Client(world, b"1")
        await holder(client, 1, "t1")
        client.publish(2, "t2", OnConflict.REPLACE, queue="dead")
        assert (await client.told.next()).holder is None
        assert len(world.queue.messages) == len(world.instance.queues["dead"].messages) == 1

    run(True, steps)


def test_a_publish_that_a_client_repeats_while_its_key_is_read_is_stored_once() -> None:
    async def steps(world: World) -> None:
        client = Client(world, b"1")
        client.publish(1, "t1")
        client.told = connect(world)  # it has reconnected
        client.publish(1, "t1")
        stored = await client.told.next()
        assert stored == m.PublishConfirm(1, stored.message_id, 1)
        assert len(world.queue.messages) == 1
        client.publish(1, "t1")
        assert await client.told.next() == stored

    run(True, steps)


def test_a_replaced_message_leaves_in_the_commit_of_the_new_one() -> None:
    async def steps(world: World) -> None:
        client = Client(world, b"1")
        first = await holder(client, 1, "t1")
        client.publish(2, "t2", OnConflict.REPLACE)
        second = await client.told.next()
        assert list(world.queue.messages.available) == [second.message_id] != [first]
        assert not len(world.instance.queues["dead"].messages), "it is no dead letter"
        await world.claim()
        assert isinstance(await client.told.next(), m.Got)
        client.publish(3, "t3", OnConflict.REPLACE)
        assert await client.told.next() == m.PublishConfirm(3, second.message_id, 0, "t2")
        client.publish(4, "t2", OnConflict.KEEP)
        retry = await client.told.next()
        client.publish(5, "t4", OnConflict.KEEP)
        assert (await client.told.next()).holder is None
        client.publish(6, "t5")
        assert await client.told.next() == m.PublishConfirm(6, retry.message_id, 0, "t2")

    run(True, steps)


def test_what_is_refused_stores_nothing() -> None:
    async def steps(world: World) -> None:
        client = Client(world, b"1")
        first = await holder(client, 1, "t1")
        with pytest.raises(UniqueViolation) as violation:
            client.publish(2, "t2", OnConflict.ERROR)
        assert (violation.value.task_id, violation.value.message_id) == ("t1", first)
        for key in ("", 256 * "k", 128 * "é"):
            with pytest.raises(InvalidMessage, match="1 to 255"):
                client.publish(2, "t2", key=key)
        world.durable = False
        world.declare("transient")
        assert isinstance(await client.told.next(), m.QueueDeclared)
        with pytest.raises(RequestError, match="durable queues"):
            client.publish(2, "t2", queue="transient")
        client.publish(2, "t2", queue="none")
        assert await client.told.next() == m.PublishConfirm(2, 0, 0)
        assert len(world.queue.messages) == 1

    run(True, steps)


def test_a_queue_that_is_deleted_while_the_key_is_read_takes_no_message() -> None:
    async def steps(world: World) -> None:
        client = Client(world, b"1")
        client.publish(1, "t1", queue="dead")
        client.publish(2, "t2", queue="dead", mandatory=True)
        world.instance.queues["dead"].deleting = True
        assert await client.told.next() == m.PublishConfirm(1, 0, 0)
        refusal = await client.told.next()
        assert (refusal.rid, refusal.code) == (2, Unroutable.code)

    run(True, steps)


@pytest.mark.parametrize(
    ("header", "unique"),
    [
        ("k", UniqueKey("k")),
        ({"key": "k", "until": "started", "on_conflict": "replace"}, UniqueKey("k", 0, OnConflict.REPLACE)),
        ({"key": "k", "until": 1.5, "on_conflict": "keep"}, UniqueKey("k", 1500, OnConflict.KEEP, True)),
        (None, None),
    ],
)
def test_a_header_names_a_key(header: Any, unique: UniqueKey | None) -> None:
    assert unique_key_of({HEADER: header}) == unique


def test_a_retry_is_never_refused_and_does_not_prolong_a_time() -> None:
    assert unique_key_of({HEADER: "k", "retries": 1}) == UniqueKey("k", UNTIL_DONE, OnConflict.KEEP)
    assert unique_key_of({HEADER: {"key": "k", "until": 60}, "retries": 1}) is None


@pytest.mark.parametrize(
    "header",
    ["", "\ud800", {}, 7, ["k"], {"until": 5}, {"key": b"k"}, {"key": "k" * 256}, {"key": "k", "until": 0},
     {"key": "k", "until": True}, {"key": "k", "until": 1e9}, {"key": "k", "until": []},
     {"key": "k", "on_conflict": None}],
)  # fmt: skip
def test_a_header_that_names_no_key_is_refused(header: Any) -> None:
    with pytest.raises(InvalidMessage):
        unique_key_of({HEADER: header})
