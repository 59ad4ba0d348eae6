"""Results of tasks that expire in a queue: REVOKED, where the result backend is the broker's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chord, group, signature, states
from celery.exceptions import ChordError, TaskRevokedError
from kombu import entity

from kombu_opendata.protocol import revocation

from ..support.broker import EmbeddedBroker
from ..support.kombu_client import connected, take
from ..support.processes import wait_until
from ..support.workers import Worker

SECONDS = 60
Queue: Any = entity.Queue  # untyped


@contextmanager
def asking(url: str, backend: str = "opendata", **settings: Any) -> Iterator[Any]:
    """An app that sends tasks and asks for their results."""
    app = Celery("asking", broker=url, backend=backend, set_as_current=False)
    app.conf.update(settings)
    try:
        yield app
    finally:
        app.backend.client.close() if backend == "opendata" else None
        app.close()


@pytest.fixture
def app(broker_url: str) -> Iterator[Any]:
    with asking(broker_url) as app:
        yield app


def assert_revoked(result: Any) -> None:
    with pytest.raises(TaskRevokedError, match="expired"):
        result.get(timeout=SECONDS)
    assert result.state == states.REVOKED
    assert (result.traceback, result.children) == (None, [])
    assert result.date_done is not None


def test_a_task_that_nobody_takes_in_time(app: Any) -> None:
    assert_revoked(app.send_task("farm.add", [1, 2], expires=0.1))


def test_a_task_that_expires_before_it_is_due_is_revoked_and_not_run(app: Any, broker_url: str, tmp_path: Path) -> None:
    worker = Worker(broker_url, tmp_path, "w", result_backend="opendata", task_ignore_result=False)
    try:
        worker.wait_ready()
        ledger = tmp_path / "ledger"
        assert_revoked(app.send_task("farm.note", [str(ledger), "ran"], countdown=2, expires=1))
        assert not ledger.exists()
        assert worker.terminate() == 0
    finally:
        worker.clean_up()


def test_a_queues_own_ttl(app: Any) -> None:
    queue = Queue("brief", queue_arguments={"x-message-ttl": 100})
    assert_revoked(app.send_task("farm.add", [1, 2], queue=queue))


@pytest.mark.parametrize("serializer", ["json", "pickle", "msgspec", "yaml"])
def test_whatever_results_are_encoded_with(broker_url: str, serializer: str) -> None:
    accepted = ["json", serializer]
    settings: Any = {"result_serializer": serializer, "accept_content": accepted, "result_compression": "gzip"}
    options = {"global_keyprefix": "mine."}
    with asking(broker_url, result_backend_transport_options=options, **settings) as app:
        assert_revoked(app.send_task("farm.add", [1, 2], expires=0.05))


def test_it_outlives_the_broker(app: Any, store_folder: Path) -> None:
    result = app.send_task("farm.add", [1, 2], expires=1.5)
    broker = EmbeddedBroker(store_folder)
    broker.kill()
    assert_revoked(result)
    broker.kill()
    assert app.AsyncResult(result.id).state == states.REVOKED


def test_nothing_is_stored_for_who_does_not_want_it(app: Any, broker_url: str, store_folder: Path) -> None:
    with asking(broker_url, backend="cache+memory://") as other:
        ignored = [
            app.send_task("farm.add", [1, 2], expires=0.05, ignore_result=True),
            other.send_task("farm.add", [1, 2], expires=0.05),
        ]
        assert_revoked(app.send_task("farm.add", [1, 2], expires=0.05))
    EmbeddedBroker(store_folder).wait_queue("celery", 0, 0)
    assert [app.AsyncResult(each.id).state for each in ignored] == [states.PENDING] * 2


def test_dead_letters_are_not_revoked(app: Any, broker_url: str) -> None:
    with connected(broker_url) as connection, connection.channel() as channel:
        channel.queue_declare("rest", durable=True, auto_delete=False)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "rest"}
        queue = Queue("work", queue_arguments=arguments)
        result = app.send_task("farm.add", [1, 2], queue=queue, expires=0.05)
        wait_until(lambda: channel._size("rest") == 1, SECONDS, "the dead letter")
        assert result.state == states.PENDING
        [letter] = take(channel, "rest")
        assert letter.headers["id"] == result.id


def test_a_result_that_is_there_is_kept(app: Any) -> None:
    app.backend.store_result("an-id", 3, states.SUCCESS)
    app.send_task("farm.add", [1, 2], task_id="an-id", expires=0.05)
    assert_revoked(app.send_task("farm.add", [1, 2], expires=0.1))
    assert app.AsyncResult("an-id").get(timeout=SECONDS) == 3


def test_a_group_with_an_expired_member(app: Any) -> None:
    members = group(signature("farm.add", [1, n], app=app, options={"expires": 0.1}) for n in range(3))
    with pytest.raises(TaskRevokedError):
        members.apply_async().get(timeout=SECONDS)


def add(app: Any, **options: Any) -> Any:
    return signature("farm.add", [1, 2], app=app, options=options)


@pytest.mark.parametrize(
    "header",
    [
        lambda app: [add(app, expires=0.1), add(app, expires=0.1)],
        lambda app: [add(app, expires=0.1, queue="nobody"), add(app)],
        lambda app: [add(app), add(app, expires=2, queue="nobody")],
    ],
    ids=["all", "the first", "the last"],
)
def test_a_chord_with_an_expired_part_fails(
    app: Any, broker_url: str, tmp_path: Path, header: Callable[[Any], list[Any]]
) -> None:
    parts = header(app)
    body = signature("farm.add_all", app=app, options={"queue": "nobody"})
    result = chord(parts, body).apply_async()
    worker = Worker(broker_url, tmp_path, "w", "-Q", "celery", result_backend="opendata", task_ignore_result=False)
    try:
        worker.wait_ready()
        error = result.get(timeout=SECONDS, propagate=False)  # else the part's own error is raised
        assert isinstance(error, ChordError)
        assert "raised TaskRevokedError('expired')" in str(error)
        assert result.state == states.FAILURE
        assert worker.terminate() == 0
    finally:
        worker.clean_up()


def test_hostile_properties_change_nothing(broker_url: str, app: Any) -> None:
    ours = app.backend.get_key_for_task("x").decode()
    with connected(broker_url) as connection, connection.channel() as channel:
        channel.queue_declare("hostile", durable=True, auto_delete=False)
        for said in (None, 1, [], ["", "", 1], [ours, "", -1], [ours, "", 2**62], [ours * 100, "", 1], [ours, 1, 1]):
            properties = {revocation.PROPERTY: said, "expiration": "1"}
            message = channel.prepare_message("b", headers={"id": "x", "group_index": 2**40}, properties=properties)
            channel.basic_publish(message, routing_key="hostile")
        assert_revoked(app.send_task("farm.add", [1, 2], queue="hostile", expires=0.1))
        assert channel._size("hostile") == 0
    assert app.AsyncResult("x").state == states.PENDING


def test_a_message_without_a_result_backend_says_nothing(broker_url: str, app: Any) -> None:
    app.send_task("farm.add", [1, 2])
    app.send_task("farm.add", [1, 2], ignore_result=True)
    with connected(broker_url) as connection, connection.channel() as channel:
        channel.basic_publish("plain", routing_key="celery")
        said = [message.properties.get(revocation.PROPERTY) is not None for message in take(channel, "celery")]
    assert said == [True, False, False]
