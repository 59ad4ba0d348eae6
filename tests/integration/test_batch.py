"""Pipelined publishing and batches over real brokers: exactly once over a kill -9, and failures that are told."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

import kombu_opendata
from kombu_opendata import PublishFailed, RequestError, errors
from tests.support.waiting import random_moment

from ..support.broker import EmbeddedBroker, Watch
from ..support.kombu_client import connected, declare, open_connection, send, take_bodies
from ..support.ledger import Ledger
from ..support.processes import Child, Children
from ..support.seeds import seeded_random
from ..support.workers import APPS, sender

#: an exchange that does not exist
NOWHERE = {"exchange": "missing", "routing_key": "nowhere"}


@pytest.fixture
def app(broker_url: str) -> Iterator[Any]:
    with sender(broker_url) as app:
        app.conf.broker_transport_options = {"idle_exit": 5}
        yield app


def in_flight(channel: Any) -> int:
    return len(channel.connection.session.in_flight.by_rid)


# ---------------------------------------------------------------- publish_mode
def test_publishes_are_stored_at_the_flush(connect: Callable[..., Any], broker_url: str) -> None:
    channel = connect(broker_url, publish_mode="pipeline").channel()
    declare(channel, "q")
    send(channel, "q", *(f"{n}" for n in range(3000)))
    channel.flush()
    assert in_flight(channel) == 0
    assert take_bodies(channel, "q") == [f"{n}" for n in range(3000)]


def test_a_failure_is_raised_by_the_next_publish_which_is_not_sent(
    connect: Callable[..., Any], broker_url: str
) -> None:
    connection = connect(broker_url, publish_mode="pipeline")
    channel = connection.channel()
    declare(channel, "q")
    message = channel.prepare_message("lost", headers={"id": "the-task"}, properties={"correlation_id": "c"})
    channel.basic_publish(message, exchange="", routing_key="nowhere", mandatory=True)
    connection.connection.pipeline.confirm_all()
    with pytest.raises(errors.PublishFailed, match=r"the-task.*this message was not sent") as caught:
        send(channel, "q", "next")
    (failed,) = caught.value.failed
    assert (failed.routing_key, failed.task_id, failed.message_id) == ("nowhere", "the-task", "c")
    assert isinstance(failed.error, errors.Unroutable)
    send(channel, "q", "after")
    connection.connection.flush()
    assert take_bodies(channel, "q") == ["after"]


def test_a_failure_is_raised_by_the_close(broker_url: str) -> None:
    connection = open_connection(broker_url, publish_mode="pipeline")
    channel = connection.channel()
    channel.basic_publish(channel.prepare_message("x"), routing_key="nowhere", mandatory=True)
    with pytest.raises(errors.PublishFailed, match="no queue takes messages"):
        connection.close()
    connection.close()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"publish_mode": "fast"}, "publish_mode: 'fast' is not"),
        ({"pipeline_depth": 1001}, "pipeline_depth: 1001 is out"),
    ],
)
def test_wrong_options_are_refused(broker_url: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError, match=text):
        open_connection(broker_url, **options).connect()


def test_what_was_published_is_stored_when_the_process_ends(
    connect: Callable[..., Any], broker_url: str, tmp_path: Path, started: Children
) -> None:
    files = [tmp_path / "started"]
    child = publisher(broker_url, files[0], 0, 2000, tmp_path)
    started.add(child)
    assert child.wait(60) == 0, child.log.read_text()
    assert child.log.read_text() == ""
    assert connect(broker_url).channel()._size("numbers") == 2000


def publisher(url: str, file: Path, first: int, count: int, folder: Path) -> Child:
    command = [sys.executable, str(APPS / "pipeline.py"), url, str(file), str(first), str(count)]
    return Child(command, folder / f"publisher{first}.log", cwd=folder)


def test_over_kills_of_the_broker_everything_is_stored_once(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker, tmp_path: Path, started: Children
) -> None:
    dice, total, rounds = seeded_random(), 8_000, 2
    files = [tmp_path / f"started{number}" for number in range(2)]
    publishers = []
    for number, file in enumerate(files):
        child = publisher(broker_url, file, number * total // 2, total // 2, tmp_path)
        started.add(child)
        publishers.append(child)
    ledgers = [Ledger(file) for file in files]
    killed: int | None = None
    for threshold in sorted(dice.randrange(1, total // 2) for _ in range(rounds)):
        ledgers[0].wait_count(threshold)
        broker.wait_up(killed)
        random_moment(dice, 0.05)
        killed = broker.kill()
    for child in publishers:
        assert child.wait(120) == 0, child.log.read_text()
    bodies = take_bodies(connect(broker_url).channel(), "numbers")
    numbers = [int(body) for body in bodies]
    assert len(numbers) == total
    assert sorted(numbers) == list(range(total))
    for half in (range(total // 2), range(total // 2, total)):
        assert [n for n in numbers if n in half] == list(half), "each publisher's are in order"


# ---------------------------------------------------------------- batches
def test_a_loop_of_apply_async_is_pipelined_and_durable_at_the_end(app: Any, connect: Any, broker_url: str) -> None:
    with kombu_opendata.batch(app) as batch:
        for number in range(500):
            app.send_task("farm.note", ("ledger", str(number)))
        assert len(batch.connections) == 1, "they went through the batch"
    assert connect(broker_url).channel()._size("celery") == 500


def test_a_batch_waits_for_no_single_publish_and_shares_commits(app: Any, broker: EmbeddedBroker) -> None:
    """That is what makes it several times faster, on any machine: it goes on while the broker stands still."""
    count = 50  # small enough for what a socket holds that nobody reads

    def send_tasks() -> None:
        for number in range(count):
            app.send_task("farm.note", ("ledger", str(number)))

    send_tasks()  # declares the queue, too
    watch = Watch(broker.folder)
    try:
        begun = watch.report()["commits"]
        send_tasks()
        one_by_one = watch.report()["commits"] - begun
        with kombu_opendata.batch(app) as batch:
            with standing_still(broker):
                send_tasks()
            batch.flush()
            in_a_batch = watch.report()["commits"] - begun - one_by_one
    finally:
        watch.close()
    assert one_by_one >= count
    assert in_a_batch < count / 5


@contextmanager
def standing_still(broker: EmbeddedBroker) -> Iterator[None]:
    """The broker does nothing meanwhile; its clients' sockets take what they send."""
    pid = broker.wait_up()
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_the_default_app_a_connection_and_a_producer_can_be_given(app: Any, broker_url: str) -> None:
    app.set_current()
    with kombu_opendata.batch() as batch:
        app.send_task("farm.note")
        assert batch.connections
    with connected(broker_url) as connection:
        declare(connection.default_channel, "q")
        for given in (connection, connection.Producer()):
            with kombu_opendata.batch(given):
                send(connection.default_channel, "q", "x", "y")
        assert connection.default_channel._size("q") == 4


def test_failures_are_raised_at_the_end_and_all_others_are_stored(app: Any, connect: Any, broker_url: str) -> None:
    def publish() -> None:
        with kombu_opendata.batch(app):
            for number in range(20):
                send_to(number)

    def send_to(number: int) -> None:
        queue = {"queue": "celery"} if number % 5 else NOWHERE
        app.send_task("farm.note", task_id=f"task {number}", **queue)

    with pytest.raises(PublishFailed) as caught:
        publish()
    assert isinstance(caught.value, errors.PublishFailed)
    assert [failed.task_id for failed in caught.value.failed] == ["task 0", "task 5", "task 10", "task 15"]
    assert connect(broker_url).channel()._size("celery") == 16


def test_an_error_inside_is_raised_after_what_was_sent_is_stored(
    app: Any, connect: Any, broker_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)

    def fail() -> None:
        with kombu_opendata.batch(app):
            app.send_task("farm.note")
            app.send_task("farm.note", task_id="gone", **NOWHERE)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert connect(broker_url).channel()._size("celery") == 1
    assert "gone" in caplog.text


def test_only_the_thread_that_entered_is_pipelined(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from kombu_opendata.client.session.session_io import SessionIO

    confirmed, publish = [], SessionIO.publish

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        confirmed.append(threading.get_ident())
        return publish(self, *args, **kwargs)

    monkeypatch.setattr(SessionIO, "publish", counting)
    with kombu_opendata.batch(app):
        app.send_task("farm.note")
        thread = threading.Thread(target=app.send_task, args=("farm.note",))
        thread.start()
        thread.join(20)
        app.send_task("farm.note")
    app.send_task("farm.note")
    assert confirmed == [thread.ident, threading.get_ident()]


def test_batches_nest_and_each_raises_its_own(app: Any) -> None:
    outer, inner = kombu_opendata.batch(app), kombu_opendata.batch(app)
    outer.__enter__()
    app.send_task("farm.note", task_id="outer", **NOWHERE)
    inner.__enter__()
    app.send_task("farm.note", task_id="inner", **NOWHERE)
    for batch, name in ((inner, "inner"), (outer, "outer")):
        with pytest.raises(PublishFailed) as caught:
            batch.__exit__(None, None, None)
        assert [failed.task_id for failed in caught.value.failed] == [name]


def test_a_publish_to_another_broker_is_not_in_the_batch(app: Any, store_folder: Path) -> None:
    with connected(f"opendata://{store_folder}/other") as other:
        channel = other.channel()
        declare(channel, "q")
        with kombu_opendata.batch(app) as batch:
            send(channel, "q", "x")
            assert in_flight(channel) == 0
            assert not batch.connections
        with kombu_opendata.batch(other), kombu_opendata.batch(app) as inner:
            send(channel, "q", "y")
            assert not inner.connections
        assert channel._size("q") == 2


def test_a_batch_needs_this_transport() -> None:
    with pytest.raises(RequestError, match="needs an opendata:// broker, and this one is memory://"):
        kombu_opendata.batch(Celery("other", broker="memory://", set_as_current=False))
    with pytest.raises(RequestError, match="not int"):
        kombu_opendata.batch(3)


def test_a_batch_goes_on_over_a_kill_of_the_broker(
    app: Any, connect: Any, broker_url: str, broker: EmbeddedBroker
) -> None:
    with kombu_opendata.batch(app):
        for number in range(600):
            app.send_task("farm.note", task_id=str(number))
            if number in (200, 450):
                broker.kill()
    bodies = take_ids(connect(broker_url).channel())
    assert bodies == [str(number) for number in range(600)]


def take_ids(channel: Any) -> list[str]:
    found = []
    while (message := channel.basic_get("celery")) is not None:
        found.append(message.headers["id"])
        message.ack()
    return found
