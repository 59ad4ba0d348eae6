"""A worker: its events while the broker is unreachable, and its report on settings without effect."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from kombu.transport import memory

from kombu_opendata.celery_integration.worker import limit_waits

SECONDS = 60


class LostChannel(memory.Channel):
    """A channel whose connection breaks when it publishes."""

    def basic_publish(self, *_args: Any, **_options: Any) -> None:
        raise ConnectionResetError("the connection was lost")


class UnreachableBroker(memory.Transport):
    """A broker that is killed after the first connection to it."""

    Channel = LostChannel
    recoverable_connection_errors = (ConnectionError,)
    is_killed = False

    def establish_connection(self) -> Any:
        if self.is_killed:
            raise ConnectionRefusedError("the broker is away")
        type(self).is_killed = True
        return super().establish_connection()


@pytest.fixture
def dispatcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(UnreachableBroker, "is_killed", False)
    with Celery("test", set_as_current=False) as app, app.connection(transport=UnreachableBroker) as connection:
        dispatcher = app.events.Dispatcher(connection, enabled=True)
        limit_waits(dispatcher)
        yield dispatcher


def ends(call: Callable[[], object]) -> bool:
    """Return True if the call returns in time; it runs in a thread that may hang."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return not thread.is_alive()


def test_a_heartbeat_does_not_wait_until_the_broker_is_back(dispatcher: Any) -> None:
    assert ends(lambda: dispatcher.send("worker-heartbeat", retry=True))
    assert UnreachableBroker.is_killed, "it was connected"
    assert ends(lambda: dispatcher.send("worker-offline", retry=False)), "the lock is free"


def test_a_dispatcher_is_closed_as_celery_5_6_does(dispatcher: Any) -> None:
    with dispatcher.mutex:
        assert not dispatcher.mutex.locked(), "it is not released in place of its owner"


def test_a_signal_handler_sends_an_event_during_another(dispatcher: Any) -> None:
    def interrupted() -> None:
        with dispatcher.mutex:  # the interrupted call holds it
            dispatcher.send("task-cancelled")

    assert ends(interrupted)


def test_a_worker_reports_settings_without_effect_once() -> None:
    program = """if True:
        import logging, sys
        from celery import Celery
        from celery.contrib.testing.worker import start_worker
        app = Celery(broker="opendata+memory://settings")
        app.conf.update(task_queue_max_priority=9, task_default_delivery_mode=1, task_default_priority=3)
        for _ in range(2):
            with start_worker(app, perform_ping_check=False, loglevel="WARNING"):
                pass
    """
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    reports = [line.partition("] ")[2] for line in run.stderr.splitlines() if "has no effect" in line]
    assert sorted(reports) == [
        "task_default_delivery_mode has no effect with this broker: durable queues always store their messages",
        "task_queue_max_priority has no effect with this broker: every queue has priorities 0 to 255",
    ], run.stderr
