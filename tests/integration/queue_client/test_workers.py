"""Workers: who is there, what they hold, control, reclaiming; a broker that is healthy or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kombu_opendata import errors

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
    (consumer,) = [worker for worker in named(client, f"{name}-consumer") if worker.consumers]
    assert (consumer.held, consumer.consumers, consumer.connected, consumer.reader) == (1, (queue,), True, False)
    assert consumer.since is not None
    (by_time,) = [worker for worker in named(client, f"{name}-reader") if worker.reader]
    assert (by_time.held, by_time.connected) == (2, False)
    assert [state.id for state in client.worker_messages(consumer.id)] == [held.id]
    assert len(client.worker_messages(by_time.id)) == 2
    assert client.worker(consumer.id) == consumer
    assert client.release_worker_messages(by_time.id) == 2
    assert named(client, f"{name}-reader")[0].held == 0
    assert [m.attempts for m in client.peek(queue, 10)] == [0] * 4
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
    assert client.metrics(queue).visible == 8
    again = opener(name=f"{name}-w2").consume(queue, prefetch=8, timeout=60)
    assert [next(again).body for _ in range(8)] == list(range(8)), "the suspended one has had none"
    again.close()
    client.drop(queue)  # which ends an iterator
    assert list(messages) == []


def test_a_suspended_worker_goes_on_when_it_is_resumed(opener: Any, client: Any, queue: str, name: str) -> None:
    messages = opener(name=f"{name}-w").consume(queue, timeout=30)
    client.send(queue, "a")
    client.ack(next(messages))
    (worker,) = [worker for worker in named(client, f"{name}-w") if worker.consumers]
    assert client.suspend_worker(worker.id) == 1
    client.send(queue, "b")
    assert client.metrics(queue).visible == 1
    assert client.resume_worker(worker.id) == 1
    assert next(messages).body == "b"
    messages.close()


def test_a_suspended_reader_is_refused(opener: Any, client: Any, queue: str, name: str) -> None:
    reader = opener(name=f"{name}-w")
    assert reader.read(queue) == []
    (worker,) = named(client, f"{name}-w")
    client.suspend_worker(worker.id)
    with pytest.raises(errors.PreconditionFailed, match="suspended"):
        reader.read(queue)
    client.resume_worker(worker.id)
    assert reader.read(queue) == []


def test_shutting_a_worker_down(opener: Any, client: Any, queue: str, name: str) -> None:
    client.send(queue, "a")
    other = opener(name=f"{name}-w")
    messages = other.consume(queue, timeout=60)
    held = next(messages)
    (worker,) = [worker for worker in named(client, f"{name}-w") if worker.consumers]
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
    from kombu_opendata import QueueClient

    options = options_of(reach)
    gone = QueueClient(reach.url, name="gone", **options)
    messages = gone.consume(queue, prefetch=1, timeout=30)
    next(messages)
    (subscription,) = gone._calls._subscriptions
    subscription._connection._drop()  # its socket is gone, and nothing was said
    assert client.metrics(queue).in_flight == 1
    found: Callable[[], bool] = lambda: client.reclaim_messages(queue) == 1  # noqa: E731
    wait_until(found, 40, "the broker to see that the socket is gone")
    assert [(m.body, m.attempts) for m in client.read(queue, 60, 5)] == [("a", 2), ("b", 1)]
    assert client.reclaim_messages() == 0
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
