"""The messages about replay, redrive and the deletion of settled messages. See docs/rfcs/0006-replay.md.

The rest of the protocol, and how a message is laid out, is in :mod:`.messages`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .frame_limits import Many
from .message_base import Message


# ------------------------------------------------------------------ client → broker
class Cursors(Message, tag=91):
    """How far the background routing is. Answer: CursorList, of these queues; with none named, of all that have any."""

    rid: int
    queues: Many[str] = msgspec.field(default_factory=list)


class Replay(Message, tag=92):
    """Route stored messages into a queue again, or with ``stop`` end what is under way. Answer: ReplayStarted.

    ``start`` and ``until`` are "now", "first", an ISO 8601 time with its offset, or a message id; ``until`` is
    exclusive. ``selector`` must be true besides the queue's filter; empty is none.
    """

    rid: int
    queue: str
    start: str | int
    until: str | int = "now"
    selector: str = ""
    stop: bool = False


class Redrive(Message, tag=93):
    """Make failed messages available again, with no attempts, in ``target`` (empty: their own queue). Answer: Redriven.

    ``which`` is "failed", or "archived_failed" for those that were archived. Only those whose metadata headers match
    the selector (empty: all), with one of ``ids`` (None: all), at most ``limit`` (0: all). It ends early when the
    connection does.
    """

    rid: int
    queue: str
    target: str = ""
    selector: str = ""
    ids: Many[int] | None = None
    limit: int = 0
    which: str = "failed"


class DeleteSettled(Message, tag=94):
    """Delete settled messages. Answer: SettledDeleted.

    ``which`` is "done", "failed" or "archived_failed". One of these says what goes: ``older_than_ms`` (settled so long
    ago or longer; -1: not by age), ``ids``, or ``all``.
    """

    rid: int
    queue: str
    which: str
    older_than_ms: int = -1
    ids: Many[int] | None = None
    all: bool = False


class ArchiveFailed(Message, tag=100):
    """Set failed messages aside; they keep all they have. Answer: Count.

    Only those that failed so long ago or longer (-1: any), with one of ``ids`` (None: any), whose metadata headers
    match the selector (empty: any); at most ``limit`` (0: all). It ends early when the connection does.
    """

    rid: int
    queue: str
    older_than_ms: int = -1
    ids: Many[int] | None = None
    selector: str = ""
    limit: int = 0


# ------------------------------------------------------------------ broker → client
class CursorList(Message, tag=191):
    """For each: queue, start, position, end, seen, routed, rate, done, again, waiting, error, selector, started_at_ms,
    changed_at_ms. ``rate`` is in messages looked at a second; ``waiting`` says that the queue is full, ``error`` why it
    could not go on the last time (empty: it could)."""

    rid: int
    cursors: list[dict[str, Any]]


class ReplayStarted(Message, tag=192):
    """The cursor as it is now, as in CursorList."""

    rid: int
    cursor: dict[str, Any]


class Redriven(Message, tag=193):
    """How many were moved, and how many stayed: the target has them, their time is over, or they wait to be published
    as dead letters. ``is_full``: the target has reached its maximum length."""

    rid: int
    moved: int
    already: int
    expired: int
    waiting: int
    is_full: bool


class SettledDeleted(Message, tag=194):
    """How many were deleted."""

    rid: int
    count: int
