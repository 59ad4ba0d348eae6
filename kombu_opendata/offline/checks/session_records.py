"""Checks of sessions: the last publishes of producers, the leases of consumers, and their running tasks."""

from __future__ import annotations

from typing import Any

from ...storage.records import keys
from ...storage.records.keys import ParsedKey, RecordKind
from ...storage.records.session_records import Producer, RunningTask, SessionLeases
from .family import CheckContext, Family


class SessionFamily(Family):
    """Family of producers, removals, leases and running tasks. Collects the leases and the running tasks."""

    kinds = (RecordKind.PRODUCER, RecordKind.REMOVAL, RecordKind.LEASES, RecordKind.RUNNING_TASKS)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._leased: dict[tuple[str, int], bytes] = {}
        self._running: dict[tuple[str, int, int], bytes] = {}

    def record(self, key: ParsedKey, raw: bytes, value: Any) -> None:
        if key.kind is RecordKind.PRODUCER:
            self._producer(raw, value)
        elif key.kind is RecordKind.REMOVAL:
            if not self.context.is_plausible(value.at_ms):
                self.add("time-implausible", f"a session removed messages at {value.at_ms} ms", key=raw)
        elif key.kind is RecordKind.LEASES:
            self._leases(raw, value)
        else:
            self._running_tasks(raw, value)

    def _running_tasks(self, raw: bytes, tasks: dict[str, list[RunningTask]]) -> None:
        end = self.context.block_end
        for queue, some in tasks.items():
            for task in some:
                subject = f"the task of message {task.message_id} of queue {queue!r}"
                if not self.context.is_plausible(task.started_at_ms):
                    text = f"{subject} began at {task.started_at_ms} ms"
                    self.add("time-implausible", text, key=raw, queue=queue, message_id=task.message_id)
                if end is not None and task.message_id >= end:
                    text = f"{subject} runs, but ids from {end} on have not been assigned yet"
                    self.add("task-wrong", text, key=raw, queue=queue, message_id=task.message_id)
                other = self._running.setdefault((queue, task.message_id, task.claimed_at_ms), raw)
                if other is not raw:
                    text = f"{subject} runs for {raw[2:].hex()} and for {other[2:].hex()}"
                    self.add("task-wrong", text, key=raw, queue=queue, message_id=task.message_id)

    def _leases(self, raw: bytes, leases: SessionLeases) -> None:
        if not self.context.is_plausible(leases.at_ms):
            self.add("time-implausible", f"the leases of a session were written at {leases.at_ms} ms", key=raw)
        for queue, ids in leases.held.items():
            for id in ids:
                other = self._leased.setdefault((queue, id), raw)
                if other is not raw:
                    text = f"message {id} of queue {queue!r} is leased to {raw[2:].hex()} and to {other[2:].hex()}"
                    self.add("lease-twice", text, key=raw, queue=queue, message_id=id)
            if len(set(ids)) < len(ids):
                self.add("lease-twice", f"a session holds a message of queue {queue!r} twice", key=raw, queue=queue)

    def _producer(self, raw: bytes, last: Producer) -> None:
        wrong = []
        if not self.context.is_plausible(last.at_ms):
            wrong.append(f"it was at {last.at_ms} ms")
        if self.context.block_end is not None and last.last_message_id >= self.context.block_end:
            wrong.append(f"it was message {last.last_message_id}, whose id has not been assigned yet")
        if last.holes & 1 or last.holes.bit_length() > last.last_sequence:
            wrong.append(f"{last.holes:#x} are not numbers below {last.last_sequence}")
        if wrong:
            text = f"the last publish of session {raw[2:].hex()}: {'; '.join(wrong)}"
            self.add("producer-implausible", text, key=raw)

    async def finish(self) -> None:
        context = self.context
        if context.sees(RecordKind.ACTIVE):
            for (queue, id), raw in self._leased.items():
                if (queue, id) not in context.in_flight:
                    text = f"session {raw[2:].hex()} holds message {id} of queue {queue!r}, which is not in flight"
                    self.add("lease-stale", text, key=raw, queue=queue, message_id=id)
        if context.sees(RecordKind.LEASES):
            for queue, id in sorted(context.in_flight - self._leased.keys()):
                text = f"message {id} of queue {queue!r} is in flight, but no session holds it"
                self.add("lease-missing", text, key=keys.active_key(queue), queue=queue, message_id=id)
