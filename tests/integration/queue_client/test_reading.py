"""Reading for a time, polling, popping, conditions, iterating."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kombu_opendata import QueueClient, errors
from kombu_opendata.queue_client.queue_options import QueueOptions

from ..conftest import Reach
from .conftest import options_of, wait_connected

kinds = pytest.mark.parametrize("durable", [True, False], ids=["durable", "transient"])


@kinds
def test_a_lease_ends_at_its_time_whatever_becomes_of_its_reader(
    opener: Any, client: Any, name: str, durable: bool
) -> None:
    client.create(name, QueueOptions(durable=durable))
    client.send(name, "a")
    reader = opener(name="reader")
    before = datetime.now(UTC)
    (first,) = reader.read(name, vt=1)
    assert before + timedelta(seconds=0.9) < first.leased_until <= datetime.now(UTC) + timedelta(seconds=1.1)
    reader.close()
    (again,) = client.read_with_poll(name, max_poll_seconds=60)
    a_little = timedelta(seconds=0.1)  # two clocks, and whole milliseconds
    assert datetime.now(UTC) + a_little >= first.leased_until, "it was not to be had before"
    assert (again.id, again.attempts, again.redelivered) == (first.id, 2, True)
    assert again.token != first.token
    with pytest.raises(errors.StaleLease):
        client.archive(name, first)
    client.ack(again)
    assert client.metrics(name).length == 0


@kinds
def test_a_lease_can_be_extended_and_ended(client: Any, name: str, durable: bool) -> None:
    client.create(name, QueueOptions(durable=durable))
    client.send(name, "a")
    message, vt = read_and_extend(client, name, 600)
    client.send(name, "b")
    assert [m.body for m in client.peek(name, 10)] == ["b"]
    (other,) = client.read(name, vt)
    # leases end in the order of their times: when the other one has, this one's first end is over
    assert [m.id for m in client.read_with_poll(name, 600, 10, max_poll_seconds=60)] == [other.id]
    client.set_vt(name, message.id, 0)  # by its id alone
    client.set_vt(name, other.id, 0)
    assert [m.body for m in client.read(name, 30, 10)] == ["a", "b"]


def read_and_extend(client: Any, name: str, seconds: float) -> tuple[Any, float]:
    """A message whose lease was extended in time, and how long it was first: longer each time that this was late."""
    for vt in (0.3, 1.5, 7.5, 37.5):
        (message,) = client.read_with_poll(name, vt, max_poll_seconds=60)
        before = datetime.now(UTC)
        try:
            until = client.extend(message, seconds)
        except errors.StaleLease:
            assert datetime.now(UTC) >= message.leased_until, "it may be refused only when the lease has ended"
            continue
        assert until >= before + timedelta(seconds=seconds - 0.1)
        return message, vt
    raise AssertionError("no lease was extended in time")


def test_attempts_are_spent_by_time(client: Any, name: str) -> None:
    client.create(f"{name}-dead")
    options = QueueOptions(max_attempts=2, dead_letter_exchange="", dead_letter_routing_key=f"{name}-dead")
    client.create(name, options)
    client.send(name, "a")
    client.read(name, vt=0.05)
    client.read_with_poll(name, vt=0.05, max_poll_seconds=30)
    (dead,) = client.read_with_poll(f"{name}-dead", max_poll_seconds=30)
    assert dead.body == "a"
    assert [state.attempts for state in client.iter_by_state(name, "failed")] == [2]


def test_a_poll_is_woken_by_a_message_and_blocks_no_other_call(
    reach: Any, client: Any, queue: str, opener: Any
) -> None:
    options = options_of(reach)
    got: list[Any] = []
    with QueueClient(reach.url, **options) as poller:
        threads = [
            threading.Thread(target=lambda: got.extend(poller.read_with_poll(queue, max_poll_seconds=60)))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for body in range(3):
            assert poller.metrics(queue).in_flight <= body  # other calls of the same client go on
            poller.send(queue, body)
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    assert sorted(message.body for message in got) == [0, 1, 2]


def test_a_poll_ends_in_time(client: Any, queue: str) -> None:
    began = time.monotonic()
    assert client.read_with_poll(queue, max_poll_seconds=0.2) == []
    assert time.monotonic() - began >= 0.2
    assert client.read_with_poll(queue, max_poll_seconds=0) == []


def test_closing_a_client_ends_its_polls(reach: Any, queue: str) -> None:
    options = options_of(reach)
    poller = QueueClient(reach.url, name="poller", **options)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(poller.read_with_poll(queue, max_poll_seconds=600)))
    thread.start()
    deadline = time.monotonic() + 30
    while not any(worker.name == "poller" and worker.connections == 2 for worker in poller.workers()):
        assert time.monotonic() < deadline
    poller.close()
    thread.join(30)
    assert not thread.is_alive()
    assert found == [[]]


def test_many_at_a_time_and_large_ones(client: Any, queue: str) -> None:
    client.send_batch(queue, [b"x" * (1 << 20)] * 8)
    first = client.read(queue, 30, 8)
    assert 4 <= len(first) < 8
    rest = client.read(queue, 30, 8)
    assert len(first) + len(rest) == 8


@kinds
def test_pop(client: Any, name: str, durable: bool) -> None:
    client.create(name, QueueOptions(durable=durable))
    client.send_batch(name, "abc")
    assert [message.body for message in client.pop(name, 2)] == ["a", "b"]
    assert [message.body for message in client.pop(name)] == ["c"]
    assert client.pop(name) == []
    figures = client.metrics(name)
    assert (figures.length, figures.done) == (0, 3 if durable else 0)


# ---------------------------------------------------------------------- conditions
@kinds
def test_a_condition_chooses(client: Any, name: str, durable: bool) -> None:
    client.create(name, QueueOptions(durable=durable))
    client.send_batch(name, range(20), [{"kind": "even" if n % 2 == 0 else "odd", "n": n} for n in range(20)])
    assert [m.body for m in client.read(name, 30, 3, where={"kind": "odd"})] == [1, 3, 5]
    assert [m.body for m in client.read(name, 30, 9, where="kind = 'odd' AND n BETWEEN 4 AND 9")] == [7, 9]
    assert [m.body for m in client.read(name, 30, 2, where={"n": 13})] == [13]
    assert client.read(name, where={"n": 13}) == []
    assert client.read(name, where={"nobody": "x"}) == []
    assert [m.body for m in client.read(name, 30, 2)] == [0, 2]


def test_a_condition_follows_the_order_of_delivery(client: Any, queue: str) -> None:
    for n in range(600):
        client.send(queue, n, {"third": n % 3 == 0}, priority=n % 2) if n < 10 else None
    client.send_batch(queue, range(10, 600), [{"third": n % 3 == 0} for n in range(10, 600)])
    read = [m.body for m in client.read(queue, 30, 5, where={"third": True})]
    assert read == [3, 9, 0, 6, 12]


def test_a_poll_with_a_condition(reach: Any, client: Any, queue: str) -> None:
    client.send(queue, "other", {"kind": "other"})
    options = options_of(reach)
    with QueueClient(reach.url, **options) as sender:
        timer = threading.Timer(0.3, lambda: sender.send(queue, "mine", {"kind": "mine"}))
        timer.start()
        found = client.read_with_poll(queue, max_poll_seconds=60, where={"kind": "mine"})
        timer.join()
    assert [m.body for m in found] == ["mine"]
    assert client.read_with_poll(queue, max_poll_seconds=0.2, where={"kind": "mine"}) == []


@pytest.mark.parametrize(("durable", "how"), [(True, "condition"), (False, "condition"), (True, "groups")])
def test_a_poll_that_looks_for_messages_sees_that_one_became_visible(
    client: Any, reach: Reach, name: str, durable: bool, how: str
) -> None:
    client.create(name, QueueOptions(durable=durable))
    id = client.send(name, "later", {"kind": "mine"}, delay=3600)
    with polling(client, reach, name, how) as found:
        client.set_vt(name, id, 0)
    assert [message.body for message in found] == ["later"]


@pytest.mark.parametrize("how", ["condition", "groups"])
def test_a_poll_that_looks_for_messages_ends_with_its_queue(client: Any, reach: Reach, queue: str, how: str) -> None:
    with polling(client, reach, queue, how) as found:
        client.delete_queue(queue)
    assert found == []


@contextmanager
def polling(client: Any, reach: Reach, queue: str, how: str) -> Iterator[list[Any]]:
    """Poll in a thread meanwhile; what came is in the list in the end."""
    found: list[Any] = []
    if how == "groups":
        client.alter(queue, {"x-partition-by": "kind"})
    with QueueClient(reach.url, name="poller", **options_of(reach)) as reader:

        def poll() -> None:
            with suppress(errors.NotFound):  # it was dropped before
                if how == "groups":
                    found.extend(reader.read_grouped(queue, header="kind", max_poll_seconds=600))
                else:
                    found.extend(reader.read_with_poll(queue, max_poll_seconds=600, where={"kind": "mine"}))

        thread = threading.Thread(target=poll)
        thread.start()
        wait_connected(client, "poller")
        yield found
        thread.join(60)
        assert not thread.is_alive()


def test_conditions_that_are_none(client: Any, queue: str) -> None:
    for where in ("kind =", "", {}, {"a": [1]}):
        with pytest.raises(errors.RequestError):
            client.read(queue, where=where)


# ---------------------------------------------------------------------- iterating
@kinds
def test_an_iterator_is_pushed_to_and_settles(client: Any, name: str, durable: bool) -> None:
    client.create(name, QueueOptions(durable=durable))
    client.send_batch(name, range(50))
    seen = []
    for message in client.consume(name, prefetch=5, timeout=10):
        assert message.leased_until is None
        seen.append(message.body)
        client.ack(message)
        if len(seen) == 50:
            break
    assert seen == list(range(50))
    assert client.metrics(name).length == 0


def test_an_iterator_ends_without_messages(client: Any, queue: str) -> None:
    assert list(client.consume(queue, timeout=0.1)) == []


def test_a_closed_iterator_gives_back(client: Any, queue: str) -> None:
    client.send_batch(queue, "abc")
    messages = client.consume(queue, prefetch=3)
    first = next(messages)
    assert client.metrics(queue).consumers == 1
    messages.close()
    with pytest.raises((errors.RequestError, errors.StaleLease)):
        client.ack(first)
    (again,) = client.read(queue, 30, 1)
    assert (again.body, again.attempts) == ("a", 1)


def test_all_ways_to_settle_what_an_iterator_holds(client: Any, queue: str) -> None:
    client.send_batch(queue, ["ack", "reject", "requeue", "release", "delete", "later"])
    messages = client.consume(queue, prefetch=6, timeout=10)
    held = {message.body: message for message in (next(messages) for _ in range(6))}
    client.archive(queue, held["ack"])
    client.reject(queue, held["reject"])
    client.reject(queue, held["requeue"], requeue=True)
    client.release(queue, held["release"])
    client.delete(queue, held["delete"])
    client.release(queue, held["later"], delay=3600)
    again = {message.body: message.attempts for message in (next(messages) for _ in range(2))}
    assert again == {"requeue": 2, "release": 1}
    messages.close()
    figures = client.metrics(queue)
    assert (figures.length, figures.delayed, figures.done, figures.failed) == (3, 1, 1, 1)


def test_an_iterator_ends_with_its_queue(client: Any, queue: str) -> None:
    client.send(queue, "a")
    messages = client.consume(queue, timeout=30)
    assert next(messages).body == "a"
    client.delete_queue(queue)
    assert list(messages) == []


# ---------------------------------------------------------------------- wrong calls
@pytest.mark.parametrize(
    ("vt", "qty"),
    [(0, 1), (-1, 1), (float("nan"), 1), (float("inf"), 1), (1e12, 1), (None, 1), (30, 0), (30, -1), (30, 10**9),
     (30, 1.5), (30, True)],
)  # fmt: skip
def test_reads_that_are_wrong(client: Any, queue: str, vt: Any, qty: Any) -> None:
    client.send(queue, "a")
    with pytest.raises(errors.RequestError):
        client.read(queue, vt, qty)
    with pytest.raises(errors.RequestError):
        client.read_with_poll(queue, vt, qty, max_poll_seconds=1)
    assert client.metrics(queue).ready == 1


def test_polls_that_are_wrong(client: Any, queue: str) -> None:
    for seconds in (-1, 3601, float("nan"), "5"):
        with pytest.raises(errors.RequestError):
            client.read_with_poll(queue, max_poll_seconds=seconds)


def test_a_queue_that_is_not_there(client: Any, queue: str, name: str) -> None:
    client.delete_queue(queue)
    for call in (
        client.read, client.pop, client.peek, client.metrics, client.purge, client.get_queue, client.delete_queue,
        lambda queue: next(client.consume(queue)), lambda queue: client.read(queue, where={"a": 1}),
        lambda queue: client.archive(queue, 1), lambda queue: client.list_by_state(queue, "done"),
    ):  # fmt: skip
        with pytest.raises(errors.NotFound, match=queue):
            call(queue)
        with pytest.raises(errors.RequestError):
            call("")
        with pytest.raises(errors.RequestError):
            call("x" * 300)


def test_a_poll_on_a_queue_that_goes(reach: Any, client: Any, queue: str) -> None:
    options = options_of(reach)
    with QueueClient(reach.url, **options) as other:
        for seconds in (0.2, 1, 5, 25):  # until the poll is there before the queue goes
            timer = threading.Timer(seconds, lambda: other.delete_queue(queue))
            began = time.monotonic()
            timer.start()
            try:
                found = client.read_with_poll(queue, max_poll_seconds=60)
                break
            except errors.NotFound:
                timer.join()
                client.create(queue)
        else:
            raise AssertionError("no poll was there in time")
        assert time.monotonic() - began >= seconds, "it is the end of the queue that ends the poll"
        timer.join()
    assert found == []


def test_what_an_iterator_holds_no_more_is_not_settled(client: Any, queue: str) -> None:
    client.send_batch(queue, range(2))
    with closing(client.consume(queue, timeout=10)) as messages:
        first, second = next(messages), next(messages)
        client.ack(first)
        client.set_vt(queue, second, 0)
        for gone in (first, second):
            with pytest.raises(errors.StaleLease):
                client.ack(gone)
        assert list(client.archive_many(queue, [first, second]).refused) == [first.id, second.id]


def test_an_exclusive_queue_is_for_all_calls_of_its_client(client: Any, opener: Any, name: str) -> None:
    client.create(name, QueueOptions(exclusive=True))
    client.send_batch(name, range(3))
    assert [message.body for message in client.read(name)] == [0]
    assert [message.body for message in client.read_with_poll(name, max_poll_seconds=60)] == [1]
    with closing(client.consume(name)) as messages:
        assert next(messages).body == 2
    other = opener(name="other")
    for call in (other.read, other.read_with_poll):
        with pytest.raises(errors.AccessRefused):
            call(name)


def test_iterators_end_with_the_session_that_made_their_exclusive_queue(reach: Reach, name: str) -> None:
    with QueueClient(reach.url, **options_of(reach)) as client:
        client.create(name, QueueOptions(exclusive=True))
        client.send(name, "a")
        with closing(client.consume(name)) as messages:
            assert next(messages).body == "a"
            client.connections.usable().close()  # the connection of all calls but those that wait
            assert list(messages) == []


@kinds
def test_each_read_says_when_the_message_was_received(client: Any, name: str, durable: bool) -> None:
    client.create(name, QueueOptions(durable=durable))
    before = datetime.now(UTC) - timedelta(seconds=1)
    client.send_batch(name, range(5), [{"n": n} for n in range(5)])
    found = client.read(name, 60) + client.read(name, 60, where={"n": 3}) + client.pop(name)
    if durable:
        client.alter(name, {"x-partition-by": "n"})
    found += client.read_grouped(name, 60, 1, header="n") if durable else client.read(name, 60)
    found += client.read_with_poll(name, 60, 1, max_poll_seconds=5)
    assert sorted(message.body for message in found) == list(range(5))
    assert all(before <= message.received_at <= datetime.now(UTC) for message in found)
    client.set_vt(name, found[0], 0)
    (again,) = client.read(name, 60)
    assert again.received_at == found[0].received_at
