"""A running worker seen by the app that sends to it: its answers to remote control, its events."""

from __future__ import annotations

import threading
from typing import Any

from celery import Celery

from .broker import EmbeddedBroker
from .workers import Worker

REPLY_SECONDS = 60


class Farm:
    """A worker, its broker, and the app that sends it tasks and controls it."""

    def __init__(self, app: Celery, worker: Worker, broker: EmbeddedBroker) -> None:
        self.app = app
        self.worker = worker
        self.broker = broker

    def send(self, task: str, *args: object, **options: object) -> str:
        """Send a task of ``apps/farm.py``; returns its id."""
        return str(self.app.send_task(f"farm.{task}", args, **options).id)

    def inspect(self, method: str) -> Any:
        """The worker's own answer."""
        answers = getattr(self.app.control.inspect([self.worker.name], timeout=REPLY_SECONDS), method)()
        assert answers, f"no answer to {method}"
        return answers[self.worker.name]

    def control(self, command: str, *args: Any, **kwargs: Any) -> Any:
        """The worker's answer to a command."""
        method = getattr(self.app.control, command)
        (answer,) = method(*args, destination=[self.worker.name], reply=True, timeout=REPLY_SECONDS, limit=1, **kwargs)
        return answer[self.worker.name]


class Heard:
    """The events that an ``app.events.Receiver`` takes in, in a thread of its own."""

    def __init__(self, app: Celery) -> None:
        self.events: list[dict[str, Any]] = []
        self.failure: BaseException | None = None
        self._connection = app.connection_for_read()
        self._receiver = app.events.Receiver(self._connection, handlers={"*": self.events.append})
        self._consuming = threading.Event()
        self._receiver.on_consume_ready = lambda *_, **__: self._consuming.set()
        self._thread = threading.Thread(target=self._run, name="receiver")

    def __enter__(self) -> Heard:
        self._thread.start()
        assert self._consuming.wait(REPLY_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._receiver.should_stop = True
        self._thread.join(REPLY_SECONDS)
        self._connection.close()
        assert not self._thread.is_alive()
        assert self.failure is None

    def _run(self) -> None:
        try:
            for _ in self._receiver.consume():
                pass
        except BaseException as exc:
            self.failure = exc
            self._consuming.set()

    def types(self, task_id: str) -> list[str]:
        """What happened to a task, in order."""
        return [event["type"] for event in self.events if event.get("uuid") == task_id]

    def heartbeats(self) -> int:
        return sum(event["type"] == "worker-heartbeat" for event in self.events)
