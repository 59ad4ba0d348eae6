"""What the engine must do, in plain Python: the model that the stateful test compares it with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kombu_opendata.protocol.queue_arguments import (
    DEFAULT_DONE_RETENTION_SECONDS,
    DEFAULT_FAILED_RETENTION_SECONDS,
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_RETRY_MAX_DELAY_MS,
    UNLIMITED_ATTEMPTS,
)
from kombu_opendata.storage.records.definitions import NO_OVERRIDES, QueueOverrides
from kombu_opendata.storage.records.idempotency import Sending
from kombu_opendata.storage.records.routing_cursor import Cursor

#: what an argument sets in the model, and its default
OVERRIDDEN = {
    "x-delivery-limit": ("max_attempts", DEFAULT_MAX_ATTEMPTS),
    "x-done-retention": ("done_retention", DEFAULT_DONE_RETENTION_SECONDS),
    "x-failed-retention": ("failed_retention", DEFAULT_FAILED_RETENTION_SECONDS),
    "x-message-ttl": ("ttl_ms", -1),
    "x-retry-delay": ("retry_delay_ms", 0),
    "x-dead-letter-exchange": ("has_dead_letters", False),
    "x-max-length-bytes": ("counts_bytes", False),
    "x-partition-by": ("partition_by", None),
    "x-rate": ("rate", None),
}

#: rates in the rules: the time of a token, and the tokens of a full bucket
RATES_MS = {"60/m:2": (1000, 2), "2/h:1": (1_800_000, 1)}


@dataclass
class Message:
    """One message in one queue, while it is available or in flight."""

    id: int
    priority: int
    visible_at: int
    deadline: int
    attempts: int = 0
    token: int = 0
    lease_until: int = 0
    session: bytes = b""
    returned: bool = False  # visible at once, though its record says: a millisecond after its claim

    def is_visible(self, now: int, at_once: bool) -> bool:
        return self.visible_at <= now or (self.returned and at_once)

    def is_expired(self, now: int) -> bool:
        return bool(self.deadline) and self.deadline <= now


@dataclass(frozen=True)
class StoredMessage:
    """What is stored of a message besides its payload."""

    exchange: str
    key: str
    priority: int
    visible_at: int
    deadline: int

    def is_expired(self, now: int) -> bool:
        return bool(self.deadline) and self.deadline <= now


@dataclass
class ModelQueue:
    """One queue; its settled lists are rows (id, at, attempts) in order, ``letters`` the reasons by id."""

    max_attempts: int
    lease_seconds: int
    done_retention: int
    failed_retention: int
    ttl_ms: int = -1
    retry_delay_ms: int = 0
    available: dict[int, Message] = field(default_factory=dict)
    in_flight: dict[int, Message] = field(default_factory=dict)
    done: list[tuple[int, int, int]] = field(default_factory=list)
    failed: list[tuple[int, int, int]] = field(default_factory=list)
    archived_failed: list[tuple[int, int, int]] = field(default_factory=list)
    has_dead_letters: bool = False
    letters: dict[int, str] = field(default_factory=dict)
    overrides: QueueOverrides = NO_OVERRIDES
    declared: tuple[Any, ...] = ()
    counts_bytes: bool = True
    expired: list[int] = field(default_factory=list)  # what `next` removed, until the ledger has it
    partition_by: str | None = None
    rate: str | None = None
    full_at_ms: float = 0  # when all tokens of the rate are there
    delayed_until: int = 0

    def override(self, overrides: QueueOverrides, now: int) -> None:
        """Settings that are not overridden are as they were declared."""
        self.rate = overrides.arguments.get("x-rate")
        names = (
            "max_attempts", "done_retention", "failed_retention", "ttl_ms", "retry_delay_ms", "has_dead_letters",
            "partition_by",
        )  # fmt: skip
        self.declared = self.declared or tuple(getattr(self, name) for name in names)
        for name, value in zip(names, self.declared, strict=True):
            setattr(self, name, value)
        self.overrides, self.counts_bytes = overrides, True
        for argument, value in overrides.arguments.items():
            name, default = OVERRIDDEN[argument]
            setattr(self, name, default if value is None else value)
        if self.max_attempts == -1:
            self.max_attempts = UNLIMITED_ATTEMPTS
        token_ms, tokens = RATES_MS[self.rate] if self.rate else (0, 0)
        self.full_at_ms = min(self.full_at_ms, now + tokens * token_ms)

    def dead_letter(self, id: int, reason: str) -> None:
        if self.has_dead_letters:
            self.letters[id] = reason

    def publish(self, message: Message, now: int) -> None:
        """The earlier of the message's deadline and the queue's counts."""
        if self.ttl_ms >= 0:
            theirs = max(message.visible_at, now) + self.ttl_ms
            message.deadline = min(message.deadline or theirs, theirs)
        self.available[message.id] = message

    def next(self, now: int, at_once: bool = True) -> Message | None:
        """The message that must be delivered next; what has expired on the way to it is removed.

        Args:
            at_once: whether a returned message is taken within the millisecond of its claim. It is as long as it stays
                in memory, which is not for the model to know.
        """
        for message in sorted(self.available.values(), key=lambda m: (m.priority, m.id)):
            if message.is_visible(now, at_once):
                if not message.is_expired(now):
                    return message
                del self.available[message.id]
                self.dead_letter(message.id, "expired")
                self.expired.append(message.id)
        return None

    def remove_expired(self, remaining: Collection[int], now: int) -> None:
        """Remove what the engine has removed, which must have expired."""
        for message in [message for message in self.available.values() if message.id not in remaining]:
            assert message.is_expired(now)
            del self.available[message.id]
            self.dead_letter(message.id, "expired")
            self.expired.append(message.id)

    def next_in_partitions(
        self, id: int | None, keys: Mapping[int, str], now: int, misplaced: Collection[int]
    ) -> Message | None:
        """The message that the engine chose. Partitions may be in any order, but priorities and ids within one not.

        Messages that have still to be moved to their partitions come later, but before the queue counts as empty.
        """
        ready = [m for m in self.available.values() if m.visible_at <= now and not m.is_expired(now)]
        if id is None:
            assert not ready
            return None
        chosen = self.available[id]
        assert chosen.is_visible(now, at_once=True)
        assert not chosen.is_expired(now)
        assert id not in misplaced
        for other in ready:
            if other.id in misplaced:
                continue
            assert chosen.priority <= other.priority
            if chosen.priority == other.priority and keys.get(id) == keys.get(other.id, "unknown"):
                assert chosen.id <= other.id
        return chosen

    def claim(self, message: Message, session: bytes, now: int) -> None:
        del self.available[message.id]
        message.attempts += 1
        message.token, message.session = max(now, message.visible_at), session
        message.lease_until = message.token + 1000 * self.lease_seconds
        self.in_flight[message.id] = message
        if self.rate:
            self.full_at_ms = max(self.full_at_ms, message.token - 50) + RATES_MS[self.rate][0]

    def put_back(self, message: Message, now: int, costs_attempt: bool) -> bool:
        """Returns whether it is available again; otherwise it has failed."""
        del self.in_flight[message.id]
        if costs_attempt and message.attempts >= self.max_attempts:
            self.failed.append((message.id, now, message.attempts))
            self.dead_letter(message.id, "delivery_limit")
            return False
        message.attempts -= not costs_attempt
        at_once = max(message.visible_at, message.token + 1)
        delay = self.retry_delay_ms * 2 ** (message.attempts - 1) if costs_attempt and self.retry_delay_ms else 0
        delay = min(delay, DEFAULT_RETRY_MAX_DELAY_MS)
        message.visible_at = max(at_once, now + delay) if delay else at_once
        message.returned = message.visible_at == at_once
        self.available[message.id] = message
        return True

    def ids(self) -> list[int]:
        settled = [id for id, _at, _attempts in self.done + self.failed + self.archived_failed]
        return [*self.available, *self.in_flight, *settled]


@dataclass(frozen=True)
class StagedRow:
    """A row of a staged job; Kombu's priority."""

    route: tuple[str, str]
    priority: int
    delay: int
    ttl: int
    size: int

    @property
    def envelope(self) -> bytes:
        return bytes([self.priority]) * self.size


@dataclass(frozen=True)
class StagedPart:
    """A batch of one block; no path where it is inline."""

    path: str
    rows: int
    offset: int
    encoded: bytes
    payload: bytes


@dataclass
class StagedJob:
    """A committed job and how far it is routed."""

    first_id: int
    at: int
    rows: list[StagedRow]
    parts: list[StagedPart] = field(default_factory=list)
    routed: int = 0

    def next_part(self) -> tuple[StagedPart, int]:
        """The batch with the next row, and which of its rows that is."""
        row = self.routed
        for part in self.parts:
            if row < part.rows:
                return part, row
            row -= part.rows
        raise AssertionError


@dataclass
class TaskMessage:
    """A message of a job's task: its newest end, whether a later message counts, and in how many queues it is open."""

    job: str
    open: int
    predecessor: int | None = None
    end: str = ""
    is_replaced: bool = False


@dataclass
class TaskLedger:
    """What the broker must count of the tasks of jobs: each of a job's messages, while it is the newest of its task."""

    messages: dict[int, TaskMessage] = field(default_factory=dict)
    newest: dict[int, int] = field(default_factory=dict)  # message → the newest that follows it
    tasks: Counter[str] = field(default_factory=Counter)
    ends: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, id: int, job: str, queues: int, predecessor: int | None = None) -> None:
        self.messages[id] = TaskMessage(job, queues, predecessor)
        self.tasks[job] += queues

    def end(self, id: int, end: str) -> None:
        message = self.messages.get(id)
        if message is None:
            return
        message.open -= 1
        if message.is_replaced and not message.end:
            message.end, message.is_replaced = "(replaced)", False
            self.tasks[message.job] -= 1
            self.forget(self.newest.get(id))
        else:
            message.end = end
            self.ends[message.job][end] += 1
        self.forget(id)

    def forget(self, id: int | None) -> None:
        message = self.messages.get(id) if id is not None else None
        if message is None or message.predecessor is None or message.open:
            return
        if message.end not in ("(replaced)", "acknowledged", "succeeded", "ignored"):
            return
        before = self.messages.get(message.predecessor)
        if before is None or not before.is_replaced:
            del self.messages[id]  # type: ignore[arg-type]
            if self.newest.get(message.predecessor) == id:
                del self.newest[message.predecessor]

    def again(self, id: int) -> None:
        """The message is ready again, or is in one more queue."""
        message = self.messages.get(id)
        if message is None:
            return
        message.open += 1
        if message.end not in ("", "(replaced)"):
            self.ends[message.job][message.end] -= 1
        else:
            self.tasks[message.job] += 1
        message.end = ""

    def follow(self, id: int, predecessor: int, queues: int) -> None:
        at: int | None = predecessor
        while at is not None:
            message = self.messages.get(at)
            if message is None:
                break
            if not message.end and not message.is_replaced:
                message.is_replaced = True
                break
            if message.end not in ("", "(replaced)"):
                self.ends[message.job][message.end] -= 1
                self.tasks[message.job] -= 1
                message.end = "(replaced)"
                break
            at = self.newest.get(at)
        self.add(id, self.messages[predecessor].job, queues, predecessor)
        self.newest[predecessor] = id


@dataclass
class UniqueHolder:
    """A message that took a unique key; ``until`` is a time, "started" or "done"."""

    id: int
    task: str
    queues: tuple[str, ...]
    until: int | str
    is_pinned: bool


@dataclass
class Model:
    """Everything; copied at a commit, put back at a crash."""

    queues: dict[str, ModelQueue] = field(default_factory=dict)
    bindings: set[tuple[str, str, str]] = field(default_factory=set)  # queue, exchange, key
    envelopes: dict[int, bytes] = field(default_factory=dict)
    stored_messages: dict[int, StoredMessage] = field(default_factory=dict)
    cursors: dict[str, Cursor] = field(default_factory=dict)
    jobs: dict[str, StagedJob] = field(default_factory=dict)
    ledger: TaskLedger = field(default_factory=TaskLedger)
    completed: set[str] = field(default_factory=set)  # jobs whose message on completion was sent
    attempts: dict[int, list[str]] = field(default_factory=dict)
    orphans: dict[tuple[str, int], str] = field(default_factory=dict)  # letters of queues that are gone
    producers: dict[bytes, tuple[int, int, int]] = field(default_factory=dict)  # last number, id, queues
    stored: set[int] = field(default_factory=set)  # numbers of publishes
    keys: dict[bytes, Sending] = field(default_factory=dict)  # idempotency keys
    unique: dict[bytes, UniqueHolder] = field(default_factory=dict)  # the last message that took each unique key
    added_again: set[int] = field(default_factory=set)  # messages that a cursor put into a queue
    counts: dict[str, dict[str, int]] = field(default_factory=dict)  # of each queue, as the engine says at a commit
    running: dict[tuple[str, int, int], tuple[bytes, int]] = field(default_factory=dict)  # by lease: session, attempt
    ended: list[tuple[int, int, str]] = field(default_factory=list)  # attempts with a report: id, number, state
    #: collected rows since the last checkpoint: a crash brings them back
    swept: dict[tuple[str, str], list[tuple[int, int, int]]] = field(default_factory=dict)

    def release(self, id: int, *left: str) -> None:
        """An operator moved or redrove a message: it holds no unique key by these queues."""
        for key, holder in self.unique.items():
            if holder.id == id:
                self.unique[key] = replace(holder, queues=tuple(name for name in holder.queues if name not in left))

    def holder(self, key: bytes, now: int) -> UniqueHolder | None:
        """Who holds a unique key: decided by where the message is."""
        holder = self.unique.get(key)
        if holder is None:
            return None
        if isinstance(holder.until, int):
            return holder if now < holder.until else None
        for name in holder.queues:
            queue = self.queues.get(name)
            if queue is None:
                continue
            waiting = queue.available.get(holder.id)
            if waiting is not None and not waiting.is_expired(now):
                return holder
            runs = holder.id in queue.in_flight or any(lease[:2] == (name, holder.id) for lease in self.running)
            if holder.until == "done" and runs:
                return holder
        return None

    def needed(self) -> set[int]:
        """The messages that some queue still has in some state."""
        return {id for queue in self.queues.values() for id in queue.ids()} | {id for _name, id in self.letters()}

    def letters(self) -> dict[tuple[str, int], str]:
        """The dead letters that wait, by queue and id."""
        waiting = {(name, id): why for name, queue in self.queues.items() for id, why in queue.letters.items()}
        return {**self.orphans, **waiting}

    def left(self, name: str, ids: Iterable[int], end: str) -> None:
        """Messages left a queue that may make them dead letters."""
        for id in ids:
            self.ledger.end(id, "dead_lettered" if self.queues[name].has_dead_letters else end)

    def forget_letter(self, name: str, id: int) -> None:
        if self.orphans.pop((name, id), None) is None:
            del self.queues[name].letters[id]

    def after_crash(self) -> None:
        for (name, which), rows in self.swept.items():
            if name in self.queues:
                kept = getattr(self.queues[name], which)
                kept[:0] = rows
        self.swept.clear()
