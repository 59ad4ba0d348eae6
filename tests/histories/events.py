"""The events of a history: what clients called and received, which faults struck, and what the store has afterwards.

Each is plain data, so a simulation makes them as well as real processes do. Times (``at``) are seconds of one monotonic
clock, which all processes of a run share. An event is recorded before what it says is done: a process that is killed
has said everything that it may have done.

A message is known by its ``key``, which its publisher chose: all publishes with one key, repeated for whatever reason,
may store one message.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec

#: how a call ended: done, refused without an effect, or handed to a client that sends it without waiting for an answer
Outcome = Literal["returned", "refused", "sent"]
#: what a consumer does with a delivery
End = Literal["ack", "reject", "requeue", "release"]
#: what a message is in a queue
State = Literal["available", "in_flight", "done", "failed", "gone"]
#: a client may do nothing more with what it held
Loss = Literal["closed", "killed", "stopped", "cut", "expired"]


class Plain(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Data that is equal by its fields."""


# ------------------------------------------------------------------ what clients call
class Operation(Plain, tag=True, tag_field="kind"):
    """What a client calls."""


class Publish(Operation):
    """Store a message, or a repetition of it.

    Attributes:
        queues: the queues to which it is routed.
        priority: a higher one is delivered sooner.
        delay, ttl: in seconds, from the moment of the publish, and from the moment when it can be delivered.
        digest: of its body.
        partition: its key in a queue with partitions.
        unique: a key of which at most one message waits or runs; nothing is stored while another one has it.
        until: how long it has the key: -1 until it is done, 0 until it is claimed, or seconds from the publish.
        replaces: it removes a message that has the key and waits.
    """

    key: str
    queues: tuple[str, ...]
    priority: int = 0
    delay: float = 0.0
    ttl: float = 0.0
    digest: str = ""
    partition: str = ""
    unique: str = ""
    until: float = -1.0
    replaces: bool = False


class Settle(Operation):
    """End a delivery by its token.

    Attributes:
        runs: its task begins, and keeps its slot and its unique key until it ends.
    """

    queue: str
    id: int
    token: int
    end: End
    runs: bool = False


class Revoke(Operation):
    """Revoke the task of a message with this key, which then holds no unique key while it waits."""

    key: str


class Leave(Operation):
    """End the session: its messages return, its tasks are lost; the reply is the time of the broker in milliseconds."""


class Delay(Operation):
    """Deliver nothing of a partition for a time; the reply is its end in milliseconds of the broker's clock."""

    queue: str
    partition: str
    seconds: float


class Remove(Operation):
    """Purge a queue, or delete messages of it: they may be gone."""

    queue: str


class Define(Operation):
    """Give a definition a value, or None to delete it: a queue, a binding, an alteration, a pause, each by its name."""

    name: str
    value: Any


class Read(Operation):
    """Get the value of a definition; the reply is the value."""

    name: str


class StoreResult(Operation):
    """Store the final result of a task; the reply is nothing."""

    task: str
    result: str


class GetResult(Operation):
    """Get the final result of a task; the reply is None as long as there is none."""

    task: str


class StartChord(Operation):
    """Start a chord: the callback's message has this key, and is sent when each part has a final result.

    Attributes:
        messages: the keys of the parts' messages, if a part has several.
    """

    callback: str
    parts: tuple[str, ...]
    messages: tuple[str, ...] = ()


class SendCallback(Operation):
    """Send the message of a chord's callback, as the broker requested from this client."""

    callback: str


class CommitJob(Operation):
    """Commit the rows of a Spark job, which are routed to a queue."""

    job: str
    queue: str
    keys: tuple[str, ...]


class AbortJob(Operation):
    """Give a Spark job up before its commit."""

    job: str
    keys: tuple[str, ...]


class Forbidden(Operation):
    """Do what the user has no right to, with an object that it must not know of.

    Attributes:
        secrets: names that no answer may contain; the reply is the text of the answer.
    """

    action: str
    secrets: tuple[str, ...] = ()


AnyOperation = (
    Publish
    | Settle
    | Revoke
    | Leave
    | Delay
    | Remove
    | Define
    | Read
    | StoreResult
    | GetResult
    | StartChord
    | SendCallback
    | CommitJob
    | AbortJob
    | Forbidden
)


# ------------------------------------------------------------------ events
class Event(Plain, tag=True, tag_field="kind"):
    """What happened at a time."""

    at: float


class Called(Event):
    """A client begins a call; ``call`` is a number that it uses once."""

    client: str
    call: int
    operation: AnyOperation


class Returned(Event):
    """A call ended; one that never does has an unknown outcome."""

    client: str
    call: int
    outcome: Outcome = "returned"
    reply: Any = None


class Delivered(Event):
    """A consumer received a message.

    Attributes:
        attempt: the number of this delivery, as the broker counts; from 1.
        requested_at: when the consumer requested it; 0 if it has a subscription.
        lease_seconds: how long its lease lasts; 0 for as long as the queue's rules say.
        order: of a read by groups; empty for any other delivery.
    """

    client: str
    queue: str
    key: str
    id: int
    token: int
    attempt: int = 1
    digest: str = ""
    requested_at: float = 0.0
    lease_seconds: float = 0.0
    order: Literal["", "fill", "round_robin", "head"] = ""


class TaskEnded(Event):
    """A worker ran a task to this end; it is recorded before the worker reports the outcome."""

    client: str
    key: str
    end: str


class Lost(Event):
    """From now on the broker may take what a client holds: the client was killed, or is away for too long."""

    client: str
    why: Loss = "killed"


class Cut(Event):
    """A client's connection is lost. What was sent to it, and not received, returns when it comes back."""

    client: str


class Crashed(Event):
    """A broker is killed, or ends otherwise than by a request.

    Attributes:
        since: the earliest time at which it may have ended, where that was noticed later; 0 if it is the same.
        synced_at: after a power loss, the time up to which settlements are on the disk; 0 if it took nothing.
    """

    broker: str
    how: str = "kill -9"
    since: float = 0.0
    synced_at: float = 0.0


class Started(Event):
    """A broker is ready, or refuses the store with an error."""

    broker: str
    error: str = ""


class ClockSet(Event):
    """A broker's system clock is set by so many seconds."""

    seconds: float


class Damaged(Event):
    """Bytes of the store are changed."""

    file: str


class Unreadable(Event):
    """The payloads of messages with these keys may be damaged for a time: one that is next then fails."""

    keys: tuple[str, ...]


class Measured(Event):
    """An amount that has a limit: the length of a queue, the connections of a user, the running tasks of a queue."""

    name: str
    value: float
    limit: float


class Counted(Event):
    """What a broker has counted since its startup: the outcomes of tasks, by the task's name."""

    runs: dict[str, int]


AnyEvent = (
    Called
    | Returned
    | Delivered
    | TaskEnded
    | Lost
    | Cut
    | Crashed
    | Started
    | ClockSet
    | Damaged
    | Unreadable
    | Measured
    | Counted
)


# ------------------------------------------------------------------ the store afterwards
class Entry(Plain):
    """A message in a queue."""

    queue: str
    id: int
    key: str
    state: State
    attempts: int = 0


class Run(Plain):
    """The record of a finished attempt, with its number; ``state`` is what the worker reported of its task.

    Attributes:
        ended_at_ms: by the broker's clock; of a task that was acknowledged early, the end of the task.
    """

    queue: str
    id: int
    number: int
    outcome: str = "acked"
    state: str = ""
    ended_at_ms: int = 0


class Rules(Plain):
    """The arguments of a queue.

    Attributes:
        max_attempts: 0 for no limit.
        dead_letters: the queue that gets its dead letters.
        lease_seconds: how long a lease without a connection, or with a visibility timeout, lasts; 0 for indefinitely.
        is_ordered: whether its consumers take what is next, rather than what matches a condition, or a partition's.
        concurrency, partition_concurrency: how many messages may be in flight, of the queue and of each partition; 0
            for no limit.
        rate, partition_rate: how many messages may be delivered in a second; 0 for no limit.
        burst: how many may be delivered at a time after a pause.
    """

    max_attempts: int = 0
    dead_letters: str = ""
    lease_seconds: float = 0.0
    is_ordered: bool = True
    concurrency: int = 0
    partition_concurrency: int = 0
    rate: float = 0
    partition_rate: float = 0
    burst: int = 1


class Store(Plain):
    """What readers find in a store after the end.

    Attributes:
        entries: each message in each queue, also those that are done; a message that a reader finds twice is there
            twice.
        runs: the records of attempts; None if they were not read.
        counts: the counters of each queue by its name.
        definitions: the values of all definitions that were read, by name.
        results: of tasks, by task.
        findings: what ``store verify`` reports, without its notes.
        refusal: why no broker opens it.
    """

    entries: tuple[Entry, ...] = ()
    runs: tuple[Run, ...] | None = None
    counts: dict[str, dict[str, int]] = {}
    definitions: dict[str, Any] = {}
    results: dict[str, str] = {}
    findings: tuple[str, ...] = ()
    refusal: str = ""


class History(Plain):
    """All events of a run in the order of their times, the rules of the queues, and the store afterwards."""

    events: tuple[AnyEvent, ...]
    store: Store
    rules: dict[str, Rules] = {}


_DECODER = msgspec.json.Decoder(AnyEvent)


def line(event: Event) -> bytes:
    """Return an event as a line of a file."""
    return msgspec.json.encode(event) + b"\n"


def read_events(files: Iterable[Path]) -> tuple[AnyEvent, ...]:
    """Return the events of several files, in order. A line that its process did not finish is none."""
    found: list[AnyEvent] = []
    for file in files:
        found += [_DECODER.decode(text) for text in file.read_bytes().split(b"\n")[:-1]]
    return tuple(sorted(found, key=lambda event: event.at))
