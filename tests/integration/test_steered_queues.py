"""Queues that operators alter and pause, as their apps see it: Kombu, staged jobs, restarts, standbys, backups."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import amqp.exceptions as amqp
import pytest
from kombu import entity, messaging
from kombu.exceptions import OperationalError

from kombu_opendata import QueueClient, batch, errors
from kombu_opendata.queue_client.queue_options import QueueOptions

from ..support.backups import back_up, command
from ..support.broker import EmbeddedBroker
from ..support.kombu_client import Inbox, connected, declare, drain_quiet, drain_until, send
from ..support.pair import Pair, url
from ..support.processes import children, wait_until
from ..support.ticks import wait_tick
from ..support.verified import assert_verified

pytestmark = pytest.mark.contract(10)

Exchange: Any = entity.Exchange  # untyped, as the others
Queue: Any = entity.Queue
Producer: Any = messaging.Producer


@pytest.fixture(scope="module")
def place(module_store_folder: Path) -> str:
    return f"opendata://{module_store_folder}/store"


@pytest.fixture
def client(place: str) -> Iterator[QueueClient]:
    with QueueClient(place) as client:
        yield client


@pytest.fixture
def connection(place: str) -> Iterator[Any]:
    with connected(place) as connection:
        yield connection


# ---------------------------------------------------------------------- apps
@pytest.mark.parametrize("durable", [True, False])
def test_kombu_declares_as_before(client: QueueClient, connection: Any, name: str, durable: bool) -> None:
    queue = Queue(name, Exchange("direct"), name, durable=durable, max_length=5, channel=connection)
    queue.declare()
    client.alter(name, {"x-max-length": 2, "x-message-ttl": 60_000})
    queue.declare()
    connection.default_channel.queue_declare(name, passive=True)
    send(connection.default_channel, name, "a", "b", "c")
    assert client.metrics(name).ready == 2
    followed = Queue(name, Exchange("direct"), name, durable=durable, max_length=2, message_ttl=60, channel=connection)
    followed.declare()
    with pytest.raises(amqp.PreconditionFailed):
        Queue(name, Exchange("direct"), name, durable=durable, max_length=3, channel=connection).declare()
    queue.delete()
    queue.declare()
    assert client.get_queue(name).overrides == {}


def test_single_active_consumers_can_be_had_and_left(client: QueueClient, connection: Any, name: str) -> None:
    channel = connection.default_channel
    declare(channel, name)
    inboxes = [Inbox(), Inbox()]
    for inbox in inboxes:
        inbox.consume(channel, name)
    client.alter(name, {"x-single-active-consumer": True})
    send(channel, name, *"abcd")
    drain_until(connection, lambda: sum(len(inbox.bodies) for inbox in inboxes) == 4)
    assert [len(inbox.bodies) for inbox in inboxes] == [4, 0]
    client.alter(name, reset=True)
    send(channel, name, *"efgh")
    drain_until(connection, lambda: sum(len(inbox.bodies) for inbox in inboxes) == 8)
    assert len(inboxes[1].bodies) == 2


def test_a_consumer_idles_while_its_queue_is_paused(client: QueueClient, connection: Any, name: str) -> None:
    channel = connection.default_channel
    declare(channel, name)
    inbox = Inbox()
    inbox.consume(channel, name)
    send(channel, name, "held")
    drain_until(connection, lambda: inbox.bodies == ["held"])
    client.pause(name)
    send(channel, name, "a", "b")
    assert channel.basic_get(name) is None
    inbox[0].requeue()
    drain_quiet(connection)
    assert inbox.bodies == ["held"]
    assert client.metrics(name).ready == 3
    client.resume(name)
    drain_until(connection, lambda: len(inbox.bodies) == 4)
    assert inbox.bodies[1:] == ["held", "a", "b"]


def test_publishes_of_kombu_are_refused_and_retried(
    client: QueueClient, connection: Any, name: str, place: str
) -> None:
    queue, other = Queue(name, Exchange(name, "fanout")), Queue(f"{name}-other", Exchange(name, "fanout"))
    for each in (queue, other):
        each(connection).declare()
    client.pause(name, publishes=True)
    producer = Producer(connection)
    for options in ({}, {"mandatory": True}, {"headers": {"x-delay": 1}}):
        with pytest.raises(amqp.RecoverableChannelError, match="takes no publishes") as caught:
            producer.publish("a", exchange=name, **options)
        assert isinstance(caught.value, errors.QueuePaused)
        assert caught.value.queue == name
    with pytest.raises(errors.PublishFailed) as failed:
        publish_batch(producer, name)
    assert {type(one.error).__mro__[1] for one in failed.value.failed} == {errors.QueuePaused}
    assert client.metrics(f"{name}-other").length == client.metrics(name).length == 0
    began = time.monotonic()
    with pytest.raises(OperationalError, match="takes no publishes"):
        producer.publish("b", exchange=name, retry=True, retry_policy={"max_retries": 3})
    assert time.monotonic() - began > 0.5  # as Celery's policy has it
    timer = threading.Timer(0.5, client.resume, [name])
    timer.start()
    producer.publish("b", exchange=name, retry=True, retry_policy={"max_retries": None})
    timer.join()
    assert client.metrics(f"{name}-other").length == client.metrics(name).length == 1


def publish_batch(producer: Any, exchange: str) -> None:
    with batch(producer.connection):
        for number in range(5):
            producer.publish(number, exchange=exchange)


@pytest.mark.parametrize("durable", [True, False])
def test_a_queue_that_is_deleted_meanwhile(client: QueueClient, name: str, place: str, durable: bool) -> None:
    """Its payloads are being read, and its filter compared, or it has just gone."""
    changes = {"x-max-length-bytes": 1_000_000, "x-filter": "a = 'b'", "x-done-retention": 5}
    if not durable:
        del changes["x-done-retention"]
    with QueueClient(place) as other, ThreadPoolExecutor() as pool:
        for number in range(6):
            client.create(name, QueueOptions(durable=durable))
            client.send_batch(name, ["x"] * 4000)
            altering = pool.submit(other.alter, name, changes, force=True)
            for _ in range(8 * number):  # at different moments
                client.get_queue(name)
            client.delete_queue(name)
            error = altering.exception(30)
            assert error is None or isinstance(error, errors.NotFound), error
            assert name not in {info.name for info in client.list_queues()}
    client.create(name)
    assert client.get_queue(name).overrides == {}


def test_a_paused_queue_is_not_unused(client: QueueClient, name: str) -> None:
    client.create(name)
    client.pause(name)
    client.alter(name, {"x-expires": 1})
    wait_tick(client, name)
    client.resume(name)
    wait_until(lambda: name not in {info.name for info in client.list_queues()}, 60, "the deletion of an unused queue")


# ---------------------------------------------------------------------- ends of the broker
CHANGES = {"x-max-length": 7, "x-filter": "a = 'b'", "x-delivery-limit": 2, "x-message-ttl": None}


def steer(client: QueueClient) -> None:
    client.create("q", None)
    client.alter("q", CHANGES)
    client.pause("q", publishes=True)
    client.create("again")
    client.alter("again", {"x-max-length": 1})
    client.pause("again")
    client.resume("again")
    client.alter("again", reset=True)


def assert_steered(client: QueueClient) -> None:
    info, again = client.get_queue("q"), client.get_queue("again")
    assert (info.arguments, info.overrides) == ({}, CHANGES)
    assert (info.paused, info.publishes_paused) == (True, True)
    assert info.paused_at is not None
    assert (again.overrides, again.paused) == ({}, False)
    client.create("q")
    client.create("again")
    with pytest.raises(errors.QueuePaused):
        client.send("q", 1)
    client.resume("q")
    client.send_batch("q", list(range(9)))
    assert [message.body for message in client.read("q", 1, 20)] == list(range(2, 9))
    client.delete_queue("q")
    client.create("q")
    assert client.get_queue("q").overrides == {}


@pytest.mark.parametrize("checkpoint", [True, False])
def test_kill_9_of_the_broker(store_folder: Path, checkpoint: bool) -> None:
    broker = EmbeddedBroker(store_folder)
    with QueueClient(f"opendata://{store_folder}") as client:
        steer(client)
        if checkpoint:
            broker.terminate()
            client.metrics("q")
        broker.kill()
        assert_verified(store_folder)
        assert_steered(client)
    broker.terminate()
    assert_verified(store_folder)


def test_bytes_are_measured_again_after_kill_9(store_folder: Path) -> None:
    broker = EmbeddedBroker(store_folder)
    with QueueClient(f"opendata://{store_folder}") as client:
        client.create("q")
        for _ in range(4):
            client.send_batch("q", ["x" * 100] * 5_000)
        broker.kill()
        limit = 10_000_000
        assert client.alter("q", {"x-max-length-bytes": limit}).counts["dropped"] == 0
        dropped = client.alter("q", {"x-max-length-bytes": limit // 5}, force=True, dry_run=True).counts["dropped"]
        broker.kill()
        assert client.alter("q", {"x-max-length-bytes": limit // 5}, force=True).counts["dropped"] == dropped
        wait_until(lambda: client.metrics("q").ready == 20_000 - dropped, 60, "the oldest messages dropped")
    broker.terminate()


def test_a_standby_keeps_it(tmp_path: Path) -> None:
    with children() as started:
        pair = Pair(str(tmp_path / "store"), tmp_path, started)
        first = pair.start()
        pair.wait_active(first)
        second = pair.start()
        with QueueClient(url(first)) as client:
            steer(client)
        first.kill()
        pair.wait_active(second)
        with QueueClient(url(second)) as client:
            assert_steered(client)


def test_a_backup_has_it(store_folder: Path, tmp_path: Path) -> None:
    store, restored = store_folder / "store", store_folder / "restored"
    with QueueClient(f"opendata://{store}") as client:
        steer(client)
    back_up(tmp_path / "backups", store)
    command("restore", tmp_path / "backups", restored)
    assert_verified(restored)
    with QueueClient(f"opendata://{restored}") as client:
        assert_steered(client)
    EmbeddedBroker(store).terminate()
    EmbeddedBroker(restored).terminate()
