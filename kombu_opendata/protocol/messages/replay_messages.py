"""Messages that replay, redrive, move, archive and delete messages (docs/rfcs/0006-replay.md)."""

from __future__ import annotations

from typing import Any

import msgspec

from .. import permissions
from ..permissions import on_queue, on_queues
from .message_base import Many, Numbered, Request, operation
from .topology_messages import Count


# ------------------------------------------------------------------ broker → client
class CursorList(Numbered, tag=191):
    """Routing cursors with their progress.

    The keys are queue, start, position, end, seen, routed, rate, done, again, waiting, error, selector, started_at_ms
    and changed_at_ms. ``rate`` is the number of messages examined per second, ``waiting`` is True if the queue is full,
    and ``error`` is the reason why the last step failed (empty: it succeeded).
    """

    cursors: list[dict[str, Any]]


class ReplayStarted(Numbered, tag=192):
    """Cursor of the replay, as in CursorList."""

    cursor: dict[str, Any]


class Redriven(Numbered, tag=193):
    """Number of moved messages, and numbers of unchanged messages by reason.

    ``is_full`` is True if the target reached its maximum length.
    """

    moved: int
    already: int  # the target has the message
    expired: int  # the TTL of the message has passed
    waiting: int  # the message is a dead letter that is not published yet
    is_full: bool
    unmatched: int = 0  # the target requires its filter to match, and the filter does not match


class SettledDeleted(Numbered, tag=194):
    """Number of deleted messages."""

    count: int


class Moved(Numbered, tag=231):
    """Number of moved or copied messages, and numbers of unchanged messages by reason, as in Redriven."""

    count: int
    already: int
    expired: int
    waiting: int
    unmatched: int
    is_full: bool


# ------------------------------------------------------------------ client → broker
@operation("see the progress of replays", on_queues("read", or_role="monitor"), query=True, large=True)
class Cursors(Request[CursorList], tag=91):
    """Request to get the progress of background routing, in these queues or in all queues if the list is empty."""

    queues: Many[str] = msgspec.field(default_factory=list)


@operation("replay messages into a queue", permissions.replay, stores=True, filter="selector")
class Replay(Request[ReplayStarted], tag=92):
    """Request to route stored messages to a queue again or, with ``stop``, cancel the running replay.

    ``start`` and ``until`` are "now", "first", an ISO 8601 time with a UTC offset, or a message id; ``until`` is
    exclusive. A message must match the queue's filter and ``selector``, unless they are empty.
    """

    queue: str
    start: str | int
    until: str | int = "now"
    selector: str = ""
    stop: bool = False


@operation("redrive failed messages", permissions.redrive, query=True, stores=True, large=True, filter="selector")
class Redrive(Request[Redriven], tag=93):
    """Request to redrive failed messages, with their attempts reset to 0. The work stops if the connection ends."""

    queue: str
    target: str = ""  # empty: their own queue
    selector: str = ""  # filter that the messages must match; empty: all messages
    ids: Many[int] | None = None  # None: all messages
    limit: int = 0  # maximum number of messages; 0: no maximum
    which: str = "failed"  # "failed" or "archived_failed"


@operation("delete settled messages", on_queue("configure", or_role="operator"), query=True, large=True)
class DeleteSettled(Request[SettledDeleted], tag=94):
    """Request to delete settled messages. Exactly one of the last three fields selects the messages."""

    queue: str
    which: str  # "done", "failed" or "archived_failed"
    older_than_ms: int = -1  # the messages that were settled at least this long ago; -1: not by age
    ids: Many[int] | None = None
    all: bool = False


@operation("archive failed messages", permissions.archive_failed, query=True, large=True, filter="selector")
class ArchiveFailed(Request[Count], tag=100):
    """Request to archive failed messages with all their data. The work stops if the connection ends."""

    queue: str
    older_than_ms: int = -1  # the messages must have failed at least this long ago; -1: at any time
    ids: Many[int] | None = None  # None: all messages
    selector: str = ""  # filter that the messages must match; empty: all messages
    limit: int = 0  # maximum number of messages; 0: no maximum


@operation("move or copy messages", permissions.move, query=True, large=True, filter="selector")
class MoveMessages(Request[Moved], tag=230):
    """Request to move ready and delayed messages to another queue. The work stops if the connection ends."""

    queue: str
    target: str
    selector: str = ""  # filter that the messages must match; empty: all messages
    ids: Many[int] | None = None  # None: all messages
    limit: int = 0  # maximum number of messages; 0: no maximum
    states: Many[str] = msgspec.field(default_factory=list)  # "available", "delayed" or both; empty: both
    copy: bool = False  # copy the messages instead
