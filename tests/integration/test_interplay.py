"""Features together: dead letters, lengths, times to live, limits, delays, in every kind of queue and store."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import errors
from kombu_opendata.broker import memory
from kombu_opendata.errors import FailedPublish
from tests.support.broker import EmbeddedBroker
from tests.support.kombu_client import connected, declare, drain_quiet, drain_until, send, take_bodies
from tests.support.processes import Child, Children, tail, wait_until
from tests.support.workers import APPS

KINDS = pytest.mark.parametrize("durable", [True, False], ids=["stored", "transient"])


@pytest.fixture(scope="module", params=["journal", "no journal"])
def url(request: pytest.FixtureRequest, module_store_folder: Path) -> Iterator[str]:
    """A broker with a journal, and one whose every commit is a checkpoint."""
    if request.param == "journal":
        yield f"opendata://{module_store_folder}"
        return
    name = f"interplay-{uuid.uuid4().hex}"
    yield f"opendata+memory://{name}"
    memory.stop(name)


@pytest.fixture
def channel(url: str) -> Iterator[Any]:
    with connected(url) as connection, connection.channel() as opened:
        yield opened


@pytest.fixture
def name() -> str:
    return f"q-{uuid.uuid4().hex[:8]}"


def make(channel: Any, name: str, durable: bool = True, **arguments: Any) -> str:
    """Declare a queue; underscores stand for hyphens."""
    declare(channel, name, durable=durable, arguments={f"x-{k.replace('_', '-')}": v for k, v in arguments.items()})
    return name


def to(queue: str) -> dict[str, Any]:
    """Dead letters go to a queue by its name."""
    return {"dead_letter_exchange": "", "dead_letter_routing_key": queue}


def collect(channel: Any, queue: str, count: int, seconds: float = 60) -> list[Any]:
    """Get and acknowledge so many messages; returns their bodies."""
    found: list[Any] = []

    def all_there() -> bool:
        found.extend(take_bodies(channel, queue))
        return len(found) >= count

    wait_until(all_there, seconds, lambda: f"{len(found)} of {count} messages in {queue}")
    return found


def retry_pattern(channel: Any, work: str, durable: bool, ttl_ms: int, **arguments: Any) -> str:
    """work → reject → a queue without consumers, where messages expire → work."""
    wait = f"{work}.wait"
    make(channel, work, durable, **to(wait), **arguments)
    make(channel, wait, durable, message_ttl=ttl_ms, **to(work))
    return wait


@KINDS
def test_the_retry_pattern(channel: Any, name: str, durable: bool) -> None:
    wait = retry_pattern(channel, name, durable, 200)
    bodies = [str(number) for number in range(40)]
    send(channel, name, *bodies)
    for turn in range(4):
        found: list[Any] = []
        started = time.monotonic()
        while len(found) < len(bodies):
            message = channel.basic_get(name)
            if message is not None:
                found.append(message)
            assert time.monotonic() - started < 30, f"{len(found)} in turn {turn}"
        assert sorted((message.body for message in found), key=int) == bodies
        if turn:
            assert {message.headers["x-death"][0]["count"] for message in found} == {turn}
            assert time.monotonic() - started < 8.0  # promptly: not with the next collection, every ten seconds
        for message in found:
            message.reject() if turn < 3 else message.ack()
    assert channel._size(name) == channel._size(wait) == 0


@pytest.mark.parametrize(
    "moment",
    [
        lambda waiting, back: True,
        lambda waiting, back: waiting or back,
        lambda waiting, back: back,
    ],
    ids=["rejected", "some wait", "some are back"],
)
def test_the_retry_pattern_through_kill_9(store_folder: Path, moment: Callable[[int, int], object]) -> None:
    """The broker is killed when the rejected messages have come so far: waiting, or back in their queue."""
    broker = EmbeddedBroker(store_folder)
    bodies = [str(number) for number in range(300)]
    with connected(f"opendata://{store_folder}") as connection, connection.channel() as channel:
        retry_pattern(channel, "work", True, 150)
        send(channel, "work", *bodies)
        for turn in range(3):
            found: list[Any] = []
            deadline = time.monotonic() + 30
            while len(found) < len(bodies):
                message = channel.basic_get("work")
                if message is not None:
                    found.append(message)
                assert time.monotonic() < deadline, f"{len(found)} in turn {turn}"
            assert channel.basic_get("work") is None
            assert sorted((message.body for message in found), key=int) == bodies
            for message in found:
                message.reject() if turn < 2 else message.ack()
            if turn < 2:
                wait_until(
                    lambda: moment(channel._size("work.wait"), channel._size("work")), 60, "the moment of the kill"
                )
                broker.kill()
        wait_until(lambda: broker.report()["dead_letters"]["waiting"] == 0, 60, "an empty outbox")
        assert channel._size("work") == channel._size("work.wait") == 0


@KINDS
def test_the_oldest_become_dead_letters_in_a_chain(channel: Any, name: str, durable: bool) -> None:
    """What is dropped from a full queue goes to the next one, which drops as well."""
    first, second, third = (f"{name}.{number}" for number in range(3))
    make(channel, third, durable)
    make(channel, second, durable, max_length=10, **to(third))
    make(channel, first, durable, max_length=10, **to(second))
    send(channel, first, *map(str, range(50)))
    assert collect(channel, third, 30) == [str(number) for number in range(30)]
    assert collect(channel, second, 10) == [str(number) for number in range(30, 40)]
    assert collect(channel, first, 10) == [str(number) for number in range(40, 50)]


@KINDS
def test_a_dead_letter_to_a_queue_that_refuses(channel: Any, name: str, durable: bool) -> None:
    make(channel, f"{name}.full", durable, max_length=2, overflow="reject-publish")
    make(channel, name, durable, max_length=0, **to(f"{name}.full"))
    send(channel, name, *"abcd")
    wait_until(lambda: channel._size(f"{name}.full") == 2, 60, "two letters")
    assert collect(channel, f"{name}.full", 2) == ["a", "b"]
    send(channel, name, "e")
    assert collect(channel, f"{name}.full", 1) == ["e"]


@KINDS
def test_a_full_queue_whose_dead_letters_return_to_it(channel: Any, name: str, durable: bool) -> None:
    """They are a cycle that nobody rejected in, and are dropped."""
    make(channel, name, durable, max_length=2, **to(name))
    send(channel, name, *"abcde")
    assert collect(channel, name, 2) == ["d", "e"]
    assert channel.basic_get(name) is None


@KINDS
def test_a_full_queue_in_the_retry_pattern(channel: Any, name: str, durable: bool) -> None:
    """What comes back to the work queue is dropped by its length, and goes round again: cut at the second time."""
    retry_pattern(channel, name, durable, 50, max_length=1)
    send(channel, name, "a")
    channel.basic_get(name).reject()
    assert collect(channel, name, 1) == ["a"]


def test_a_delivery_limit_with_a_delay_and_dead_letters(channel: Any, name: str) -> None:
    make(channel, f"{name}.dead")
    make(channel, name, delivery_limit=3, retry_delay=80, **to(f"{name}.dead"))
    send(channel, name, "a", "b", priority=3)
    send(channel, name, "c", priority=9)
    seen: list[str] = []
    deadline = time.monotonic() + 20
    while len(seen) < 9 and time.monotonic() < deadline:
        message = channel.basic_get(name)
        if message is not None:
            seen.append(message.body)
            message.requeue()
    assert seen[0] == "c"
    assert sorted(seen) == sorted("abc" * 3)
    dead = collect(channel, f"{name}.dead", 3)
    assert sorted(dead) == ["a", "b", "c"]
    assert channel.basic_get(name) is None
    assert channel._size(name) == 0


@KINDS
def test_a_purge_and_a_delete_between(channel: Any, name: str, durable: bool) -> None:
    """What is dead already arrives; what is purged does not; a new queue of that name starts empty."""
    make(channel, f"{name}.dead", durable)
    make(channel, name, durable, **to(f"{name}.dead"))
    send(channel, name, *map(str, range(20)))
    for _ in range(10):
        channel.basic_get(name).reject()
    assert channel.queue_purge(name) == 10
    send(channel, name, "x", "y")
    channel.basic_get(name).reject()
    assert channel.queue_delete(name) == 1
    make(channel, name, durable)
    assert channel._size(name) == 0
    assert collect(channel, f"{name}.dead", 11) == [*map(str, range(10)), "x"]
    assert channel.basic_get(f"{name}.dead") is None


@KINDS
def test_a_queue_that_expires_leaves_its_letters(channel: Any, name: str, durable: bool) -> None:
    make(channel, f"{name}.dead", durable)
    make(channel, name, durable, expires=3000, max_length=3, **to(f"{name}.dead"))
    send(channel, name, *map(str, range(6)))
    assert collect(channel, f"{name}.dead", 3) == ["0", "1", "2"]

    def gone() -> bool:
        try:
            send_mandatory(channel, name)
        except errors.Unroutable:
            return True
        return False

    wait_until(gone, 60, "the end of the queue")


def send_mandatory(channel: Any, queue: str) -> None:
    channel.basic_publish(channel.prepare_message("?"), exchange="", routing_key=queue, mandatory=True)


def test_a_long_backlog_expires_to_dead_letters(store_folder: Path) -> None:
    """More messages than a queue has in memory, cold after a restart, all become dead letters once."""
    broker = EmbeddedBroker(store_folder)
    count = 14_000
    url = f"opendata://{store_folder}"
    with connected(url, publish_mode="pipeline") as connection, connection.channel() as channel:
        make(channel, "dead")
        make(channel, "backlog", message_ttl=4000, **to("dead"))
        send(channel, "backlog", *map(str, range(count)))
    broker.kill()
    with connected(url, publish_mode="pipeline") as connection, connection.channel() as channel:
        wait_until(lambda: channel._size("backlog") == 0, 100, lambda: f"{channel._size('backlog')} left")
        wait_until(lambda: channel._size("dead") >= count, 100, lambda: f"{channel._size('dead')} dead")
        assert channel._size("dead") == count
    assert broker.report()["dead_letters"]["waiting"] == 0


def test_pipelined_publishes_into_a_full_queue_through_kill_9(store_folder: Path) -> None:
    """Each is stored once or reported as refused, whatever of it was in flight at the kill."""
    broker = EmbeddedBroker(store_folder)
    url = f"opendata://{store_folder}"
    bodies = [str(number) for number in range(3000)]
    with connected(url) as taking, connected(url, publish_mode="pipeline") as publishing:
        channel, producer = taking.channel(), publishing.channel()
        make(channel, "full", max_length=300, overflow="reject-publish")
        taken: list[Any] = []
        refused: list[FailedPublish] = []
        for number, body in enumerate(bodies):
            message = producer.prepare_message(body, properties={"correlation_id": body})
            sent = False
            while not sent:
                with collecting(refused):  # one that raises was not sent
                    producer.basic_publish(message, exchange="", routing_key="full")
                    sent = True
            if number % 700 == 350:
                taken += take_bodies(channel, "full")
            if number in (900, 2100):
                broker.kill()
        with collecting(refused):
            publishing.connection.flush()
        taken += take_bodies(channel, "full")
    never_sent = [entry.message_id for entry in refused]
    assert all(isinstance(entry.error, errors.QueueFull) for entry in refused), refused
    assert refused
    assert len(taken) == len(set(taken))
    assert not set(taken) & set(never_sent)
    assert sorted([*taken, *never_sent], key=int) == bodies


def test_a_single_active_consumer_stays_it_over_kill_9(store_folder: Path, tmp_path: Path, started: Children) -> None:
    """While it holds a message, no other consumer gets one, though that one is back first."""
    broker = EmbeddedBroker(store_folder)
    url = f"opendata://{store_folder}"
    serve_patiently(broker, tmp_path, started)
    with connected(url) as one, connected(url) as other, connected(url) as sending:
        channel = sending.channel()
        make(channel, "one", single_active_consumer=True)
        inboxes: list[list[Any]] = [[], []]
        consuming = one.channel(), other.channel()
        for each, inbox in zip(consuming, inboxes, strict=True):
            each.basic_qos(0, 1, False)
            each.basic_consume("one", callback=inbox.append)
        send(channel, "one", *"abc")
        drain_until(one, lambda: inboxes[0])
        broker.kill()
        serve_patiently(broker, tmp_path, started)
        assert consuming[1]._size("one") == 2  # it is back
        drain_quiet(other, 0.3)
        assert inboxes[1] == []
        inboxes[0][0].ack()
        drain_until(one, lambda: len(inboxes[0]) == 2)
        drain_quiet(other, 0.1)
        assert inboxes[1] == []
        inboxes[0][1].ack()
        drain_until(one, lambda: len(inboxes[0]) == 3)
        broker.kill()  # the next one, which a client starts, has the usual grace
        one.connection.link.close()  # the active one never comes back
        send(channel, "one", "d")
        drain_until(other, lambda: inboxes[1])
        assert [message.body for message in inboxes[1]] == ["d"]


def serve_patiently(broker: EmbeddedBroker, folder: Path, started: Children) -> None:
    """Run a broker with a long grace where the clients of an embedded one look for theirs."""
    options = ["--store", f"file://{broker.folder}", "--listen", f"unix:{broker.folder}/broker.sock"]
    child = Child([sys.executable, str(APPS / "long_grace.py"), "broker", *options], folder / "patient.log", cwd=folder)
    started.add(child)
    wait_until(lambda: child.ended or broker.answers(), 60, lambda: f"a broker:\n{tail(child.log)}")
    child.check()


def test_what_a_full_queue_drops_is_there_once_through_kill_9(store_folder: Path) -> None:
    broker = EmbeddedBroker(store_folder)
    bodies = [str(number) for number in range(900)]
    with connected(f"opendata://{store_folder}") as connection, connection.channel() as channel:
        make(channel, "dead")
        make(channel, "full", max_length=5, **to("dead"))
        for body in bodies:
            send(channel, "full", body)
            if body in ("299", "599", "899"):
                broker.kill()
        dead = collect(channel, "dead", len(bodies) - 5)
        assert sorted(dead + take_bodies(channel, "full"), key=int) == bodies
        assert channel.basic_get("dead") is None


@contextmanager
def collecting(refused: list[FailedPublish]) -> Iterator[None]:
    """Note the failures that a call raises."""
    try:
        yield
    except errors.PublishFailed as exc:
        refused += exc.failed
