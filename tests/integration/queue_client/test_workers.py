"""Workers: who is there, what they hold, control, reclaiming; a broker that is healthy or not."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest

from kombu_opendata import QueueClient, errors

from ...support.processes import wait_until
from .conftest import options_of


def named(client: Any, name: str) -> list[Any]:
    return [worker for worker in client.workers() if worker.name == name]


def test_workers_are_listed_with_what_they_hold(opener: Any, client: Any, queue: str, name: str) -> None:
    client.send_batch(queue, range(5))
    reader = opener(name=f"{name}-reader")
    reader.read(queue, 60, 2)
    messages = opener(name=f"{name}-consumer").consume(queue, prefetch=1, timeout=30)
    held = next(messages)
    (consumer,) = named(client, f"{name}-consumer")
    assert (consumer.held, consumer.consumers, consumer.connected, consumer.reader) == (1, (queue,), True, False)
    assert consumer.since is not None
    (by_time,) = named(client, f"{name}-reader")
    assert (by_time.held, by_time.connected, by_time.connections, by_time.reader) == (2, True, 1, True)
    assert by_time.since is not None
    assert [state.id for state in client.worker_messages(consumer.id)] == [held.id]
    assert len(client.worker_messages(by_time.id)) == 2
    assert client.worker(consumer.id) == consumer
    assert client.release_worker_messages(by_time.id) == 2
    (by_time,) = named(client, f"{name}-reader")
    assert (by_time.held, by_time.connected, by_time.reader) == (0, True, False)
    assert [m.attempts for m in client.peek(queue, 10)] == [0] * 4
    messages.close()


def test_workers_are_listed_with_their_prefetch_their_oldest_message_and_what_they_end(
    opener: Any, client: Any, queue: str, name: str
) -> None:
    ids = client.send_batch(queue, range(4))
    consumer = opener(name=f"{name}-w")
    messages = consumer.consume(queue, prefetch=3, timeout=30)
    done, failed, held = (next(messages) for _ in range(3))
    (before,) = named(client, f"{name}-w")
    assert (before.prefetch, before.oldest_id, before.done_per_minute) == (3, ids[0], 0)
    assert before.oldest_since is not None
    consumer.ack(done)
    consumer.reject(queue, failed)
    wait_until(lambda: named(client, f"{name}-w")[0].failed_per_minute, 30, "the message that failed is counted")
    (after,) = named(client, f"{name}-w")
    assert (after.done_per_minute, after.failed_per_minute, after.oldest_id) == (1, 1, held.id)
    messages.close()


def test_suspending_a_worker(opener: Any, client: Any, queue: str, name: str) -> None:
    other = opener(name=f"{name}-w")
    messages = other.consume(queue, timeout=60)
    client.send(queue, "a")
    client.ack(next(messages))
    for worker in named(client, f"{name}-w"):
        client.suspend_worker(worker.id)
    client.send_batch(queue, range(8))
    assert all(worker.suspended for worker in named(client, f"{name}-w"))
    assert client.metrics(queue).ready == 8
    again = opener(name=f"{name}-w2").consume(queue, prefetch=8, timeout=60)
    assert [next(again).body for _ in range(8)] == list(range(8)), "the suspended one has had none"
    again.close()
    client.delete_queue(queue)  # which ends an iterator
    assert list(messages) == []


def test_a_suspended_worker_goes_on_when_it_is_resumed(opener: Any, client: Any, queue: str, name: str) -> None:
    messages = opener(name=f"{name}-w").consume(queue, timeout=30)
    client.send(queue, "a")
    client.ack(next(messages))
    (worker,) = named(client, f"{name}-w")
    assert client.suspend_worker(worker.id) == 1
    client.send(queue, "b")
    assert client.metrics(queue).ready == 1
    assert client.resume_worker(worker.id) == 1
    assert next(messages).body == "b"
    messages.close()


def test_suspending_ends_every_read_that_waits(reach: Any, client: Any, queue: str, name: str) -> None:
    client.alter(queue, {"x-partition-by": "h"})
    with QueueClient(reach.url, name=f"{name}-w", **options_of(reach)) as reader, ThreadPoolExecutor(3) as pool:
        reads: list[Callable[[], Any]] = [
            lambda: reader.read_with_poll(queue, max_poll_seconds=15),
            lambda: reader.read_with_poll(queue, max_poll_seconds=15, where={"h": "x"}),
            lambda: reader.read_grouped(queue, header="h", max_poll_seconds=15),
        ]
        answers = [pool.submit(read) for read in reads]
        wait_until(lambda: sum(each.connections for each in named(client, f"{name}-w")) == 3, 60, "the reads to wait")
        (worker,) = named(client, f"{name}-w")
        client.suspend_worker(worker.id)
        done, late = wait(answers, 10)
        assert not late
        for answer in done:  # one that came after the suspension was refused
            assert isinstance(answer.exception(), errors.PreconditionFailed) or answer.result() == []


def test_a_suspended_reader_is_refused(opener: Any, client: Any, queue: str, name: str) -> None:
    reader = opener(name=f"{name}-w")
    assert reader.read(queue) == []
    (worker,) = named(client, f"{name}-w")
    client.suspend_worker(worker.id)
    with pytest.raises(errors.PreconditionFailed, match="suspended"):
        reader.read(queue)
    client.resume_worker(worker.id)
    assert reader.read(queue) == []


def test_a_client_is_one_worker_with_all_it_does(opener: Any, client: Any, queue: str, name: str) -> None:
    """It reads for a time, iterates, and opens another connection after it was suspended."""
    client.create(f"{name}-2")
    client.send_batch(queue, range(3))
    both = opener(name=f"{name}-w")
    messages = both.consume(queue, prefetch=1, timeout=30)
    ids = {next(messages).id, *(message.id for message in both.read(queue, 60))}
    (worker,) = named(client, f"{name}-w")
    assert (worker.held, worker.consumers, worker.connections, worker.reader) == (2, (queue,), 2, True)
    assert {state.id for state in client.worker_messages(worker.id)} == ids
    assert {state.holder for state in client.worker_messages(worker.id)} == {f"{name}-w"}
    assert client.suspend_worker(worker.id) == 1
    for read in (both.read, both.read_with_poll):
        with pytest.raises(errors.PreconditionFailed, match="suspended"):
            read(queue)
    client.send(f"{name}-2", "a")
    later = both.consume(f"{name}-2", timeout=0.3)
    assert list(later) == []
    assert client.metrics(f"{name}-2").ready == 1
    assert client.release_worker_messages(worker.id) == 2
    client.resume_worker(worker.id)
    wait_until(lambda: client.worker(worker.id).held == 1, 60, "the iterator to have one again")
    assert [message.attempts for message in both.read(queue, 60, 3)] == [1, 1]
    messages.close()


def test_two_clients_of_one_name_are_two_workers(opener: Any, client: Any, queue: str, name: str) -> None:
    ids = client.send_batch(queue, range(2))
    readers = [opener(name=f"{name}-r") for _ in ids]
    assert [message.id for reader in readers for message in reader.read(queue, 60)] == ids
    workers = named(client, f"{name}-r")
    assert sorted(state.id for worker in workers for state in client.worker_messages(worker.id)) == ids
    assert [worker.held for worker in workers] == [1, 1]
    readers[0].close()  # its message stays held
    wait_until(lambda: [w.connected for w in named(client, f"{name}-r")].count(False) == 1, 60, "one without the other")
    assert sorted(worker.held for worker in named(client, f"{name}-r")) == [1, 1]
    assert client.reclaim_messages(queue) == 1
    assert [worker.connected for worker in named(client, f"{name}-r")] == [True]
    assert [message.id for message in client.read(queue, 60, 2)] == ids[:1]


def test_knowing_a_worker_is_no_way_into_its_session(reach: Any, name: str) -> None:
    with QueueClient(reach.url, name=name, **options_of(reach)) as other:
        (worker,) = named(other, name)
        session = other.connections.usable().session
        assert worker.id not in (session.id.hex(), session.client.hex())


def test_shutting_a_worker_down(opener: Any, client: Any, queue: str, name: str) -> None:
    client.send(queue, "a")
    other = opener(name=f"{name}-w")
    messages = other.consume(queue, timeout=60)
    held = next(messages)
    (worker,) = named(client, f"{name}-w")
    assert client.shutdown_worker(worker.id) == 1
    client.send(queue, "b")
    other.ack(held)  # what it holds it may settle
    assert list(messages) == []
    assert [m.body for m in client.read(queue, 60, 5)] == ["b"]


def test_workers_that_are_not_there(client: Any) -> None:
    for call in (client.suspend_worker, client.resume_worker, client.shutdown_worker, client.worker):
        with pytest.raises(errors.NotFound):
            call("00" * 16)
    for wrong in ("no hex", 3, "abc"):
        with pytest.raises(errors.RequestError):
            client.suspend_worker(wrong)
    assert client.worker_messages("00" * 16) == []
    assert client.release_worker_messages("00" * 16) == 0


def test_messages_of_the_dead_are_reclaimed(reach: Any, opener: Any, client: Any, queue: str) -> None:
    client.send_batch(queue, "ab")
    options = options_of(reach)
    gone = QueueClient(reach.url, name="gone", **options)
    messages = gone.consume(queue, prefetch=1, timeout=30)
    next(messages)
    (subscription,) = gone.connections._subscriptions
    subscription._connection.link.drop()  # its socket is gone, and nothing was said
    assert client.metrics(queue).in_flight == 1
    found: Callable[[], bool] = lambda: client.reclaim_messages(queue) == 1  # noqa: E731
    wait_until(found, 60, "the broker to see that the socket is gone")
    assert [(m.body, m.attempts) for m in client.read(queue, 60, 5)] == [("a", 2), ("b", 1)]
    assert client.reclaim_messages(queue) == 0
    subscription.ended = "closed"
    subscription._connection.abandon()
    messages.close()
    gone.close()


def test_health(client: Any) -> None:
    client.heartbeat()
    assert client.is_healthy()
    assert "default" in client.status()["instances"]
    client.close()
    assert not client.is_healthy()
    with pytest.raises(errors.RequestError, match="closed"):
        client.heartbeat()
