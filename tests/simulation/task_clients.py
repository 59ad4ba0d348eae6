"""Simulated Celery: workers that report outcomes and send the callbacks of chords, and the result backend's clients."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from kombu_opendata.client.session.unconfirmed import TaskRun
from kombu_opendata.errors import ConnectionLost, RetryLater
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.envelope import encode_envelope
from kombu_opendata.protocol.messages.message_base import Numbered, Request
from kombu_opendata.protocol.task_reports import TaskReport, TaskState

from ..histories import events as e
from .clients import CHANNEL, Consumer, KombuClient
from .plan import CONTROL, TASKS

_FINAL, _DAY_MS = 2, 86_400_000
#: the newest unique tasks, of which one is revoked
_RECENT = 4
#: how often a worker sends a request before it gives up, as in an outage that is too long
_ATTEMPTS = 5
#: in the key of a chord's task, before its number
_PART = ".part"
#: at the end of the key of a task's second message
_AGAIN = "~"
CALLBACK = ".callback"
Reply = TypeVar("Reply", bound=Numbered)


class Worker(Consumer):
    """A worker's main process: it reports the outcomes of tasks, which it acknowledges before or after their runs.

    As in Celery, the results have a connection of their own. A task of a chord is acknowledged after its result is
    stored, and after the callback is sent if it was the chord's last one.
    """

    queues = (TASKS,)

    def _open(self) -> None:
        super()._open()
        self.running: dict[m.Lease, str] = {}  # acknowledged

    def begin(self) -> None:
        self.reports_outcomes = self.random.random() < 0.75
        super().begin()
        self._open_results()

    def _open_results(self) -> None:
        self.results = self.new_connection(f"{self.label}-results")

    def begin_task(self, place: float) -> None:
        """Acknowledge the message of a task, which begins."""
        lease = self.take_held(place)
        if lease is not None and _PART not in self.held[lease]:
            key = self.held.pop(lease)
            runs = self.connection.takes_reports  # before the call, which may resume the session with a newer broker
            call = self.settled(lease, "ack", runs=runs)
            self.connection.settle_message(CHANNEL, m.Outcome.ACK, Started(lease))
            self.record.returned(call, outcome="sent")
            if runs:
                self.running[lease] = key

    def leave(self) -> None:
        """End the session, and begin another one."""
        self._consume()
        self.is_leaving = True
        self.record.lost("closed")
        self.record.run(e.Leave(), lambda: self.connection.call(m.Goodbye(0)), lambda _reply: self.around.wall_ms())
        self.connection.abandon()
        self._open()

    def end_task(self, place: float, end: str) -> None:
        """Report the end of a task; one that is not acknowledged yet is now."""
        running = list(self.running)
        if running and place < 0.5:
            lease = running[int(2 * place * len(running))]
            report = self._ended(self.running.pop(lease), end)
            self.connection.settle_task(CHANNEL, m.Outcome.REPORT, lease, report)
        elif (held := self.take_held(place)) is not None:
            key = self.held[held]
            if _PART in key:
                end = "succeeded"
                self._store_part(key)
                if held not in self.held:  # the session was lost
                    return
            del self.held[held]
            report = self._ended(key, end)
            call = self.settled(held, "ack")
            self.connection.settle_task(CHANNEL, m.Outcome.ACK, held, report)
            self.record.returned(call, outcome="sent")

    def _ended(self, key: str, end: str) -> TaskReport:
        if self.connection.takes_reports:
            self.record.add(e.TaskEnded, client=self.label, key=key, end=end)
        return TaskReport.cut(TaskState.SUCCEEDED if end == "succeeded" else TaskState.RAISED, 1000, 1, "simulated")

    # ---- chords
    def _store_part(self, key: str) -> None:
        """Store the result of a chord's task; send the callback if the broker chose this worker."""
        task, result = key.removesuffix(_AGAIN), f"SUCCESS {key} by {self.label}"
        chord, _, number = task.partition(_PART)
        name = chord.encode()
        stored = self._ask(
            m.StoreResult(
                0, task.encode(), _FINAL, result.encode(), _DAY_MS,
                chord=name, index=int(number), member=task.encode(), chord_ttl_ms=_DAY_MS,
            ),
            e.StoreResult(task=task, result=result),
        )  # fmt: skip
        if stored.complete:
            self._ask(m.GetChord(0, name))
            self.fiber.block(self.random.choice((0.0, 0.01, 0.2)))  # a process that has other work
            call = self.record.called(e.SendCallback(callback=f"{chord}{CALLBACK}"))
            callback = self.message(f"{chord}{CALLBACK}", b"callback", TASKS)
            self._repeat(lambda: self.connection.publish(callback))
            self.record.returned(call)
            self._ask(m.CloseChord(0, name))

    def _ask(self, message: Request[Reply], operation: e.Operation | None = None) -> Reply:
        """Send a request to the result backend, again after an outage."""

        def send() -> Reply:
            call = self.record.called(operation) if operation is not None else 0
            reply = self.results.call(message)
            if operation is not None:
                self.record.returned(call)
            return reply

        return self._repeat(send)

    def _repeat(self, send: Callable[[], Reply]) -> Reply:
        """Send something that a task has done, again if the broker refuses it; else the worker ends."""
        for attempt in range(_ATTEMPTS):
            try:
                return send()
            except (ConnectionLost, RetryLater) as exc:
                if isinstance(exc, ConnectionLost) or attempt == _ATTEMPTS - 1:
                    self.record.lost("closed")
                    self.connection.abandon()
                    self.results.abandon()
                    self._open()
                    self._open_results()
                    raise
                self.fiber.block(0.2)
        raise AssertionError


@dataclass
class Started:
    """A delivered message whose task begins."""

    lease: m.Lease
    run: TaskReport | TaskRun | None = TaskRun.BEGUN


class Backend(KombuClient):
    """Workers' result backend, and the clients that wait for results."""

    def store_result(self, task: str, result: str, size: int) -> None:
        result = result.ljust(size, ".")
        message = m.StoreResult(0, task.encode(), _FINAL, result.encode(), _DAY_MS)
        operation = e.StoreResult(task=task, result=result)
        self.record.run(operation, lambda: self.connection.call(message))

    def start_chord(self, chord: str, parts: int, again: bool = False) -> None:
        """Open a chord, and send its tasks; one of them is added to the header, as by a task.

        As in Celery, the size is known before the last task is sent. With ``again``, each task is sent twice, as by a
        client that got no answer, and one is added twice; it may have ended before that.
        """
        tasks = tuple(f"{chord}{_PART}{number}" for number in range(parts))
        repeated = tuple(f"{task}{_AGAIN}" for task in tasks if again)
        name, callback = chord.encode(), f"{chord}{CALLBACK}"
        call = self.record.called(e.StartChord(callback=callback, parts=tasks, messages=(*tasks, *repeated)))
        self.connection.call(m.OpenChord(0, name, _DAY_MS, again=True, body=callback.encode()))
        added, *others, last = tasks
        add = m.OpenChord(0, name, _DAY_MS, added=1, member=added.encode())
        self.connection.call(add)
        for key in (added, *others):
            self.publish(key, TASKS, 10)
        if again:
            self.fiber.block(self.random.choice((0.0, 0.3, 2.0)))
            self.connection.call(add)
        self.connection.call(m.OpenChord(0, name, _DAY_MS, size=parts - 1))
        for key in (last, *repeated):
            self.publish(key, TASKS, 10)
        self.record.returned(call)

    def revoke(self, place: float) -> None:
        """Revoke a unique task that may wait for its time, as Celery's remote control does."""
        called = [event.operation for event in self.around.events if isinstance(event, e.Called)]
        waiting = [call.key for call in called if isinstance(call, e.Publish) and call.unique and call.delay][-_RECENT:]
        if waiting:
            task = waiting[int(place * len(waiting))]
            command = {"method": "revoke", "arguments": {"task_id": task}, "destination": None, "pattern": None}
            envelope = encode_envelope(json.dumps(command), "application/json", "utf-8", {}, {}, CONTROL, "")
            message = m.Publish(0, 0, CONTROL, "", envelope, {}, 0, self.around.wall_ms())
            self.record.run(e.Revoke(key=task), lambda: self.connection.publish(message))

    def get_result(self, task: str) -> None:
        message = m.GetResults(0, [task.encode()])
        self.record.run(e.GetResult(task=task), lambda: self.connection.call(message).values[0], _text)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
