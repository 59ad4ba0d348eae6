"""Replay, redrive and the deletion of settled messages, over a connection."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from ...errors import RequestError
from ...protocol.messages import CursorList, Cursors, DeleteSettled, Redrive, Redriven, Replay, ReplayStarted
from ..session.broker_connection import BrokerConnection

#: a place in the log: "now", "first", a time, or a message id
Point = str | int | datetime
_MAX_SECONDS = 1 << 42


def start_replay(
    connection: BrokerConnection, queue: str, start: Point, until: Point = "now", *, selector: str = ""
) -> dict[str, Any]:
    """Have a queue filled again with stored messages, in the background; returns the progress at the beginning.

    It gets those that its filter lets in, but for those that wait in it or are in flight. So tasks that are done are
    run again.

    Args:
        start: the first of them: "first", a time with its offset (datetime, or ISO 8601), a message id.
        until: the first that is not.
        selector: must be true of their headers, too; empty is none.

    Raises:
        NotFound: no such queue.
        PreconditionFailed: it is being filled already.
        RequestError: a start or an end that is none, a wrong selector, a queue that is not stored.
    """
    answer: ReplayStarted = connection.call(replay_request(queue, start, until, selector))
    return answer.cursor


def stop_replay(connection: BrokerConnection, queue: str) -> dict[str, Any]:
    """End a replay where it stands; returns its progress. What it put into the queue stays there.

    Raises:
        NotFound: no such queue.
        PreconditionFailed: it is not being filled.
    """
    answer: ReplayStarted = connection.call(Replay(0, queue, "now", stop=True))
    return answer.cursor


def progress(connection: BrokerConnection, queues: Iterable[str] = ()) -> list[dict[str, Any]]:
    """How far replays are, of these queues or of all that had one.

    Each has ``queue``; ``start``, ``position`` and ``end`` (message ids); ``seen`` and ``routed`` (messages); ``rate``
    (messages looked at a second); ``done``; ``again`` (asked for by :func:`start_replay`); ``waiting`` (the queue is
    full); ``error`` (why it could not go on the last time, or empty); ``selector``; ``started_at_ms``;
    ``changed_at_ms``.

    Raises:
        NotFound: no such queue.
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
    """Make failed messages of a queue available again, with no attempts and the same ids.

    It ends with the connection: what was moved until then is moved. Over a reconnect the rest is moved, and only that
    is counted.

    Args:
        target: the queue that gets them; empty is their own.
        selector: only those whose headers it is true of.
        ids: only these.
        limit: at most so many; 0 is all.
        timeout: seconds to wait for the end, None for ever.

    Returns:
        ``moved``, and how many stayed: ``already`` (the target has them), ``expired``, ``waiting`` (dead letters that
        are not published yet); ``is_full`` says that the target's maximum length ended it.

    Raises:
        NotFound: no such queue.
        RequestError: a wrong selector, a negative limit, a queue that is not stored.
        RetryLater: the disk is full; what was moved is moved.
        socket.timeout: it is not over in time, and goes on.
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
    """Delete done or failed messages of a queue; returns how many. What no other queue has is gone for good.

    Args:
        which: "done", "failed" or "archived_failed".
        older_than: those that were settled so long ago or longer; seconds, if it is a number.
        ids: these.
        all: all. Exactly one of the three is given.
        timeout: seconds to wait for the end, None for ever.

    Raises:
        NotFound: no such queue.
        RequestError: a queue that is not stored, or not exactly one of the three.
        RetryLater: the disk is full; what was deleted is deleted.
        socket.timeout: it is not over in time, and goes on.
    """
    return int(connection.call(delete_request(queue, which, older_than, ids, all), timeout).count)


# ---------------------------------------------------------------------- the requests
def replay_request(queue: str, start: Point, until: Point, selector: str) -> Replay:
    """What :func:`start_replay` sends."""
    return Replay(0, queue, _point(start), _point(until), selector)


def delete_request(
    queue: str, which: str, older_than: timedelta | float | None, ids: Iterable[int] | None, all: bool
) -> DeleteSettled:
    """What :func:`delete_settled` sends.

    Raises:
        RequestError: an age below 0, or none that can be.
    """
    age_ms = -1
    if older_than is not None:
        seconds = older_than.total_seconds() if isinstance(older_than, timedelta) else older_than
        if not 0 <= seconds < _MAX_SECONDS:
            raise RequestError(f"an age of {seconds} s: give 0 or more", older_than=seconds)
        age_ms = int(1000 * seconds)
    return DeleteSettled(0, queue, which, age_ms, None if ids is None else list(ids), all)


def _point(value: Point) -> str | int:
    """A time as text; the broker refuses one without its offset."""
    return value.isoformat() if isinstance(value, datetime) else value
