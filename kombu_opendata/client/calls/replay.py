"""Replay stored messages, redrive failed ones, delete settled ones."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from ...errors import RequestError
from ...protocol.messages import CursorList, Cursors, DeleteSettled, Redrive, Redriven, Replay, ReplayStarted
from ..session.broker_connection import BrokerConnection

#: a position in the log: "now", "first", a time, or a message id
Point = str | int | datetime
_MAX_SECONDS = 1 << 42


def start_replay(
    connection: BrokerConnection, queue: str, start: Point, until: Point = "now", *, selector: str = ""
) -> dict[str, Any]:
    """Fill a queue again with stored messages, in the background; returns the progress at the beginning.

    The queue gets the messages that its filter matches, except those that are waiting in it or in flight. So tasks that
    are done run again.

    Args:
        start: the first message: "first", a time with its offset (datetime, or ISO 8601), or a message id.
        until: the first message that is left out.
        selector: the headers must match it as well; empty means no selector.

    Raises:
        NotFound: there is no such queue.
        PreconditionFailed: a replay into the queue is running already.
        RequestError: the start, the end or the selector is not valid, or the queue is not stored.
    """
    answer: ReplayStarted = connection.call(replay_request(queue, start, until, selector))
    return answer.cursor


def stop_replay(connection: BrokerConnection, queue: str) -> dict[str, Any]:
    """Stop a replay; returns its progress. The messages that it put into the queue stay there.

    Raises:
        NotFound: there is no such queue.
        PreconditionFailed: no replay is running into the queue.
    """
    answer: ReplayStarted = connection.call(Replay(0, queue, "now", stop=True))
    return answer.cursor


def progress(connection: BrokerConnection, queues: Iterable[str] = ()) -> list[dict[str, Any]]:
    """The progress of replays into these queues, or into all queues that had one.

    Each has ``queue``; ``start``, ``position`` and ``end`` (message ids); ``seen`` and ``routed`` (messages); ``rate``
    (messages read a second); ``done``; ``again`` (:func:`start_replay` began it); ``waiting`` (the queue is full);
    ``error`` (why it could not go on the last time, or empty); ``selector``; ``started_at_ms``; ``changed_at_ms``.

    Raises:
        NotFound: there is no such queue.
    """
    answer: CursorList = connection.call(Cursors(0, list(queues)))
    return answer.cursors


def redrive(
    connection: BrokerConnection,
    queue: str,
    target: str = "",
    *,
    selector: str = "",
    ids: Iterable[int] | None = None,
    limit: int = 0,
    timeout: float | None = None,
) -> Redriven:
    """Make failed messages of a queue available again, with the same ids and no attempts.

    A redrive ends with its connection, and the messages that it has moved stay moved. After a reconnect it moves the
    rest, and counts only those.

    Args:
        target: the queue that gets them; empty means their own queue.
        selector: move only messages whose headers match it.
        ids: move only these.
        limit: move at most this many; 0 means all.
        timeout: seconds to wait for the end; None waits for ever.

    Returns:
        ``moved``, and how many stayed: ``already`` (the target has them), ``expired``, ``waiting`` (dead letters that
        are not published yet). ``is_full`` says that the redrive stopped at the target's maximum length.

    Raises:
        NotFound: there is no such queue.
        RequestError: the selector is not valid, the limit is negative, or the queue is not stored.
        RetryLater: the disk is full; the messages moved before that stay moved.
        socket.timeout: the redrive did not end in time, and goes on.
    """
    chosen = None if ids is None else list(ids)
    answer: Redriven = connection.call(Redrive(0, queue, target, selector, chosen, limit), timeout)
    return answer


def delete_settled(
    connection: BrokerConnection,
    queue: str,
    which: str,
    *,
    older_than: timedelta | float | None = None,
    ids: Iterable[int] | None = None,
    all: bool = False,
    timeout: float | None = None,
) -> int:
    """Delete settled messages of a queue; returns how many. A message that no other queue has is gone for good.

    Give exactly one of ``older_than``, ``ids`` and ``all``.

    Args:
        which: "done", "failed" or "archived_failed".
        older_than: delete those that were settled at least this long ago; a number means seconds.
        ids: delete these.
        all: delete all.
        timeout: seconds to wait for the end; None waits for ever.

    Raises:
        NotFound: there is no such queue.
        RequestError: the queue is not stored, or not exactly one of the three arguments was given.
        RetryLater: the disk is full; the messages deleted before that stay deleted.
        socket.timeout: the deletion did not end in time, and goes on.
    """
    return int(connection.call(delete_request(queue, which, older_than, ids, all), timeout).count)


# ---------------------------------------------------------------------- the requests
def replay_request(queue: str, start: Point, until: Point, selector: str) -> Replay:
    """The request that :func:`start_replay` sends."""
    return Replay(0, queue, _point(start), _point(until), selector)


def delete_request(
    queue: str, which: str, older_than: timedelta | float | None, ids: Iterable[int] | None, all: bool
) -> DeleteSettled:
    """The request that :func:`delete_settled` sends.

    Raises:
        RequestError: the age is negative, or far too large.
    """
    age_ms = -1
    if older_than is not None:
        seconds = older_than.total_seconds() if isinstance(older_than, timedelta) else older_than
        if not 0 <= seconds < _MAX_SECONDS:
            raise RequestError(f"older_than is {seconds} s: give 0 or more", older_than=seconds)
        age_ms = int(1000 * seconds)
    return DeleteSettled(0, queue, which, age_ms, None if ids is None else list(ids), all)


def _point(value: Point) -> str | int:
    """A datetime as text; the broker refuses one without an offset."""
    return value.isoformat() if isinstance(value, datetime) else value
