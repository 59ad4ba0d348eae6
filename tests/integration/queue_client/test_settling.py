"""Settling by message and by id: what is read, what waits, what somebody else holds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kombu_opendata import errors
from kombu_opendata.queue_client.queue_options import QueueOptions

kinds = pytest.mark.parametrize("durable", [True, False], ids=["durable", "transient"])


def counts(client: Any, queue: str) -> tuple[int, int, int, int, int]:
    """visible, delayed, in flight, done, failed."""
    figures = client.metrics(queue)
    return figures.ready, figures.delayed, figures.in_flight, figures.done, figures.failed


@kinds
def test_what_was_read_is_settled_by_its_lease(client: Any, name: str, durable: bool) -> None:
    client.create(name, QueueOptions(durable=durable))
    client.send_batch(name, range(6))
    read = client.read(name, 60, 6)
    client.archive(name, read[0])
    client.delete(name, read[1])
    client.reject(name, read[2])
    client.reject(name, read[3], requeue=True)
    client.release(name, read[4])
    client.release(name, read[5], delay=3600)
    kept = (1, 1) if durable else (0, 0)
    assert counts(client, name) == (2, 1, 0, *kept)
    assert [(m.body, m.attempts) for m in client.read(name, 60, 6)] == [(3, 2), (4, 1)]
    for message in read[:3]:
        with pytest.raises(errors.MessageNotFound):
            client.archive(name, message)
    with pytest.raises(errors.StaleLease):
        client.archive(name, read[3])
    with pytest.raises(errors.StaleLease):
        client.delete(name, read[5])


@kinds
def test_what_waits_is_archived_deleted_and_delayed_by_its_id(client: Any, name: str, durable: bool) -> None:
    client.create(name, QueueOptions(durable=durable))
    ids = client.send_batch(name, range(4))
    client.archive(name, ids[0])
    client.delete(name, ids[1])
    until = client.set_vt(name, ids[2], 3600)
    assert abs(until - datetime.now(UTC) - timedelta(hours=1)) < timedelta(minutes=1)
    assert counts(client, name) == (1, 1, 0, int(durable), 0)
    for call in (client.reject, client.release):
        with pytest.raises(errors.StaleLease, match="no consumer holds it"):
            call(name, ids[3])
    client.set_vt(name, ids[2], 0)
    assert [m.id for m in client.read(name, 60, 4)] == ids[2:]
    if durable:
        assert client.get(ids[0]).states[0].state == "done"
        with pytest.raises(errors.MessageNotFound):
            client.get(ids[1], name)


def test_deleted_messages_leave_nothing(client: Any, queue: str) -> None:
    ids = client.send_batch(queue, [b"x" * 100_000, b"small"])
    (held, _other) = client.read(queue, 60, 2)
    client.delete(queue, held)
    client.delete(queue, ids[1])
    for id in ids:
        with pytest.raises(errors.MessageNotFound):
            client.get(id)


def test_what_a_reader_holds_can_be_settled_by_its_id_from_anywhere(opener: Any, client: Any, queue: str) -> None:
    (id,) = client.send_batch(queue, ["a"])
    opener(name="reader").read(queue, 60)
    client.archive(queue, id)
    assert counts(client, queue) == (0, 0, 0, 1, 0)


@kinds
def test_what_a_connection_holds_is_refused_without_its_token(
    opener: Any, client: Any, name: str, durable: bool
) -> None:
    client.create(name, QueueOptions(durable=durable))
    (id,) = client.send_batch(name, ["a"])
    messages = opener(name="the holder").consume(name, timeout=30)
    held = next(messages)
    for call in (client.archive, client.delete, client.release, lambda queue, id: client.set_vt(queue, id, 0)):
        with pytest.raises(errors.LeaseHeld, match="'the holder'") as caught:
            call(name, id)
        assert caught.value.values == {"holder": "the holder", "message_id": id, "queue": name}
    with pytest.raises(errors.PreconditionFailed, match="no time to extend"):
        client.set_vt(name, id, 5, token=held.token)
    with pytest.raises(errors.StaleLease):
        client.delete(name, id, token=held.token + 1)
    client.delete(name, id, token=held.token)
    assert counts(client, name) == (0, 0, 0, 0, 0)
    client.send(name, "b")
    assert next(messages).body == "b"  # its credit is free again
    messages.close()


def test_many_at_a_time(client: Any, queue: str) -> None:
    ids = client.send_batch(queue, range(2500))
    read = client.read(queue, 60, 1000)
    settled = client.archive_many(queue, [*read, ids[-1], 10**12])
    assert len(settled.done) == 1001
    assert {id: type(error) for id, error in settled.refused.items()} == {10**12: errors.MessageNotFound}
    assert len(client.delete_many(queue, ids[1000:2000]).done) == 1000
    assert counts(client, queue) == (499, 0, 0, 1001, 0)
    read = client.read(queue, 60, 400)
    assert len(client.release_many(queue, read[:100]).done) == 100
    assert len(client.reject_many(queue, read[100:200]).done) == 100
    assert len(client.reject_many(queue, read[200:300], requeue=True).done) == 100
    extended = client.set_vt_many(queue, read[300:], 3600)
    assert extended.until - datetime.now(UTC) > timedelta(minutes=50)
    assert counts(client, queue) == (299, 0, 100, 1001, 100)


@pytest.mark.slow
def test_messages_of_a_long_backlog_are_found_by_their_ids(client: Any, queue: str) -> None:
    ids = [id for _ in range(4) for id in client.send_batch(queue, range(10_000))]
    client.read(queue, 60, 10)
    chosen = ids[20_000:40_000:1000]
    assert sorted(client.archive_many(queue, chosen).done) == chosen
    assert [m.id for m in client.peek(queue, 3, after=ids[29_998])] == [ids[29_999], ids[30_001], ids[30_002]]
    assert client.get(ids[35_001]).states[0].state == "available"
    assert client.get(ids[39_000]).states[0].state == "done"
    figures = client.metrics(queue)
    assert (figures.ready, figures.in_flight, figures.done) == (40_000 - 30, 10, 20)


def test_the_retry_delay_of_a_queue(client: Any, name: str) -> None:
    client.create(name, QueueOptions(retry_delay_seconds=3600))
    client.send_batch(name, range(3))
    read = client.read(name, 60, 3)
    client.reject(name, read[0], requeue=True)
    client.set_vt(name, read[1], 0)  # visible now means now
    client.release(name, read[2])
    assert counts(client, name)[:2] == (2, 1)


def test_the_last_attempt(client: Any, name: str) -> None:
    client.create(name, QueueOptions(max_attempts=1))
    client.send_batch(name, range(3))
    read = client.read(name, 60, 3)
    client.set_vt(name, read[0], 0)
    client.reject(name, read[1], requeue=True)
    client.release(name, read[2])
    assert counts(client, name) == (1, 0, 0, 0, 2)


def test_calls_that_are_wrong(client: Any, queue: str, name: str) -> None:
    client.create(f"{name}-2")
    client.send(queue, "a")
    (message,) = client.read(queue, 60)
    wrong: Any
    for wrong in (-1, 1 << 63, 1.5, "1", None, True):
        with pytest.raises(errors.RequestError):
            client.archive(queue, wrong)
    with pytest.raises(errors.RequestError, match="is from queue"):
        client.archive(f"{name}-2", message)
    for seconds in (-1, float("nan"), float("inf"), 1e12, "5"):
        with pytest.raises(errors.RequestError):
            client.set_vt(queue, message, seconds)
        with pytest.raises(errors.RequestError):
            client.release(queue, message, delay=seconds)
    assert client.archive_many(queue, []).done == ()
    client.ack(message)


def test_ids_that_are_none_are_refused(client: Any, name: str) -> None:
    client.create(name)
    for ids in ([-1], ["7"], [True]):
        with pytest.raises(errors.RequestError, match="a message id must be a whole number"):
            client.redrive(name, ids=ids)
        with pytest.raises(errors.RequestError, match="a message id must be a whole number"):
            client.delete_settled(name, ids=ids)
