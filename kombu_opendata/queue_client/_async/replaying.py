"""Replay, redrive, and the deletion of what is settled."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

from ...protocol import messages as m
from .. import checks
from ..checks import Seconds
from .base import AsyncBase

#: a place in the log of messages: "now", "first", a time, or a message id
Point = str | int | datetime


class AsyncReplaying(AsyncBase):
    """Calls about messages that were there before."""

    async def replay(self, queue: str, start: Point, until: Point = "now", *, where: str = "") -> dict[str, Any]:
        """Fill a queue again with stored messages, in the background; returns the progress at the beginning.

        See :func:`kombu_opendata.client.calls.replay.start_replay` for the arguments, what is raised, and the progress.
        ``where`` is a selector that must be true besides the queue's filter.
        """
        answer: m.ReplayStarted = await self._calls.call(m.Replay(0, queue, _point(start), _point(until), where))
        return answer.cursor

    async def stop_replay(self, queue: str) -> dict[str, Any]:
        """End a replay where it stands; returns its progress."""
        answer: m.ReplayStarted = await self._calls.call(m.Replay(0, queue, "now", stop=True))
        return answer.cursor

    async def replay_progress(self, queues: Iterable[str] = ()) -> list[dict[str, Any]]:
        """How far replays are, of these queues or of all that had one."""
        answer: m.CursorList = await self._calls.call(m.Cursors(0, list(queues)))
        return answer.cursors

    async def redrive(
        self,
        queue: str,
        target: str = "",
        *,
        where: str = "",
        ids: Iterable[int] | None = None,
        limit: int = 0,
        state: Literal["failed", "archived_failed"] = "failed",
    ) -> m.Redriven:
        """Make failed messages available again, with no attempts and the same ids; other calls go on meanwhile.

        Args:
            target: the queue that gets them; empty is their own.
            where: a selector: only those whose headers it is true of.
            ids: only these.
            limit: at most so many; 0 is all. After a kill of the broker the call, and its counting, begins again.
            state: ``archived_failed`` for those that :meth:`archive_failed` set aside.

        Returns:
            ``moved``, and how many stayed: ``already`` (the target has them), ``expired``, ``waiting`` (dead letters
            that are not published yet); ``is_full``: the target's maximum length ended it.
        """
        chosen = None if ids is None else checks.message_ids(ids)
        answer: m.Redriven = await self._calls.call_apart(m.Redrive(0, queue, target, where, chosen, limit, state))
        return answer

    async def archive_failed(
        self,
        queue: str,
        *,
        where: str = "",
        ids: Iterable[int] | None = None,
        older_than: Seconds | None = None,
        limit: int = 0,
    ) -> int:
        """Set failed messages aside: all, or those that every argument lets pass; returns how many.

        They are ``archived_failed`` from then on, in the order of archiving, and keep all they have: payload, headers,
        attempts, and when they failed. No retention removes them; :meth:`delete_settled` does, or the queue's end.
        Other calls go on meanwhile.

        Args:
            where: a selector: only those whose headers it is true of.
            ids: only these.
            older_than: only those that failed so many seconds ago or longer.
            limit: at most so many; 0 is all. After a kill of the broker the call, and its counting, begins again.

        Raises:
            NotFound: there is no such queue.
            RequestError: a wrong selector, a queue that is not stored.
        """
        age = _age_ms(older_than)
        chosen = None if ids is None else checks.message_ids(ids)
        answer: m.Count = await self._calls.call_apart(m.ArchiveFailed(0, queue, age, chosen, where, limit))
        return answer.count

    async def delete_settled(
        self,
        queue: str,
        state: Literal["done", "failed", "archived_failed"] = "done",
        *,
        older_than: Seconds | None = None,
        ids: Iterable[int] | None = None,
        all: bool = False,
    ) -> int:
        """Delete settled messages: done, failed or archived failed ones; returns how many. Other calls go on meanwhile.

        After a kill of the broker the call, and its counting, begins again.

        Args:
            older_than: those that were settled so many seconds ago or longer; or
            ids: these; or
            all: all. Exactly one of the three is given.
        """
        age = _age_ms(older_than)
        chosen = None if ids is None else checks.message_ids(ids)
        answer: m.SettledDeleted = await self._calls.call_apart(m.DeleteSettled(0, queue, state, age, chosen, all))
        return answer.count


def _age_ms(older_than: Seconds | None) -> int:
    """-1: of any age."""
    return -1 if older_than is None else checks.milliseconds(older_than, "older_than", high=checks.MAX_DELAY_SECONDS)


def _point(value: Point) -> str | int:
    """A time as text; the broker refuses one without its offset."""
    return value.isoformat() if isinstance(value, datetime) else value
