"""Replay, redrive, moves between queues, archiving and deleting settled messages, and the jobs of Spark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from msgspec.structs import asdict

from ...client.calls.history_queries import Page
from ...protocol import messages as m
from ...staging.job import JobInfo
from .. import checks
from ..checks import Point, Seconds
from ..requests import age_ms
from .base import AsyncBase


class AsyncReplaying(AsyncBase):
    """Calls about messages that were published or settled before."""

    async def replay(self, queue: str, start: Point, until: Point = "now", *, where: str = "") -> dict[str, Any]:
        """Put stored messages into a queue again, in the background; returns the progress at the start.

        The queue gets the messages that its filter matches, except those that are waiting in it or in flight. So tasks
        that are done run again. :class:`kombu_opendata.protocol.messages.replay_messages.CursorList` has the fields of
        a progress.

        Args:
            start: the first message: "first", a time with its offset (datetime, or ISO 8601), or a message id.
            until: the first message that is left out.
            where: messages must match this filter, too.

        Raises:
            NotFound: there is no such queue.
            PreconditionFailed: a replay into the queue is running already.
            RequestError: the start, the end or the filter is not valid, or the queue is not stored.
        """
        answer: m.ReplayStarted = await self._calls.call(
            m.Replay(0, queue, checks.position(start), checks.position(until), where)
        )
        return answer.cursor

    async def stop_replay(self, queue: str) -> dict[str, Any]:
        """Stop a replay where it is; returns its progress."""
        answer: m.ReplayStarted = await self._calls.call(m.Replay(0, queue, "now", stop=True))
        return answer.cursor

    async def replay_progress(self, queues: Iterable[str] = ()) -> list[dict[str, Any]]:
        """The progress of the replays of these queues, or of all queues that had one."""
        answer: m.CursorList = await self._calls.call(m.Cursors(0, list(queues)))
        return answer.cursors

    async def list_staged_jobs(self, after: str = "", *, limit: int = 100) -> Page[JobInfo]:
        """A page of the staged jobs that the broker remembers, ordered by id: a job until a week after it was settled.

        Args:
            after: the ``next`` of the previous page, which is a job's id.
            limit: 1 to 1,000.

        Raises:
            RequestError: the store can't hold staged jobs, or an argument is not valid.
        """
        answer: m.Jobs = await self._calls.call(m.ListJobs(0, after, checks.whole(limit, "the limit", 1, 1000)))
        jobs = tuple(JobInfo(**asdict(job), blocked=answer.blocked.get(job.job_id)) for job in answer.jobs)
        return Page(jobs, jobs[-1].job_id if answer.more and jobs else None, None)

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
        """Make failed messages of a queue available again, with no attempts and the same ids; other calls continue.

        :meth:`retry_failures` does so for several queues, and runs tasks again that failed acknowledged.

        Args:
            target: the queue that gets them; by default, their own.
            where: only messages that match this filter.
            ids: only these messages.
            limit: the most messages to move; 0 means all.
            state: ``archived_failed`` for messages that :meth:`archive_failed` set aside.

        Returns:
            ``moved``, and how many stayed: ``already`` (the target has them), ``expired``, ``waiting`` (dead letters
            that are not published yet), ``unmatched`` (every message of the target must match its filter). ``is_full``
            says that the target reached its maximum length.

        Raises:
            QueuePaused: publishes to the target are paused.
        """
        chosen = None if ids is None else checks.message_ids(ids)
        answer: m.Redriven = await self._calls.call_apart(m.Redrive(0, queue, target, where, chosen, limit, state))
        return answer

    async def move_messages(
        self,
        queue: str,
        target: str,
        *,
        where: str = "",
        ids: Iterable[int] | None = None,
        limit: int = 0,
        states: Iterable[Literal["available", "delayed"]] = ("available", "delayed"),
    ) -> m.Moved:
        """Move waiting messages to another queue, which gets them with no attempts and the same ids and delays.

        Messages in flight stay, and so do those that come meanwhile. Each message moves exactly once, also if the
        broker is killed. Other calls continue meanwhile.

        Args:
            where: only messages that match this filter.
            ids: only these messages.
            limit: the most messages to move; 0 means all.
            states: only messages in one of these states.

        Returns:
            ``count``, and how many stayed: ``already`` (the target has them), ``expired``, ``waiting`` (dead letters
            that are not published yet), ``unmatched`` (every message of the target must match its filter).
            ``is_full`` says that the target reached its maximum length: the same call again moves the rest.

        Raises:
            NotFound: there is no such queue.
            QueuePaused: publishes to the target are paused.
            RequestError: the filter is not valid, a queue is not stored, or both are the same.
        """
        return await self._move(queue, target, where, ids, limit, states, False)

    async def copy_messages(
        self,
        queue: str,
        target: str,
        *,
        where: str = "",
        ids: Iterable[int] | None = None,
        limit: int = 0,
        states: Iterable[Literal["available", "delayed"]] = ("available", "delayed"),
    ) -> m.Moved:
        """As :meth:`move_messages`, but the messages wait in both queues, each stored once.

        The same call again copies only what the target does not have, in any state.
        """
        return await self._move(queue, target, where, ids, limit, states, True)

    async def _move(
        self,
        queue: str,
        target: str,
        where: str,
        ids: Iterable[int] | None,
        limit: int,
        states: Iterable[str],
        copy: bool,
    ) -> m.Moved:
        chosen = None if ids is None else checks.message_ids(ids)
        request = m.MoveMessages(0, queue, target, where, chosen, limit, list(states), copy)
        answer: m.Moved = await self._calls.call_apart(request)
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
        """Set failed messages aside: all, or those that satisfy every argument; returns how many.

        They become ``archived_failed``, in the order of archiving, and keep everything: payload, headers, attempts, and
        when they failed. No retention removes them, only :meth:`delete_settled` or the deletion of the queue. Other
        calls continue meanwhile.

        Args:
            where: only messages that match this filter.
            ids: only these messages.
            older_than: only messages that failed at least this many seconds ago.
            limit: the most messages to archive; 0 means all. If the broker is killed, the call and its count start
                again.

        Raises:
            NotFound: there is no such queue.
            RequestError: the filter is not valid, or the queue is not stored.
        """
        age = age_ms(older_than)
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
        """Delete settled messages: done, failed or archived failed ones; returns how many.

        Other calls continue meanwhile. If the broker is killed, the call and its count start again. Exactly one of the
        following arguments must be given.

        Args:
            older_than: messages that were settled at least this many seconds ago.
            ids: these messages.
            all: all of them.
        """
        age = age_ms(older_than)
        chosen = None if ids is None else checks.message_ids(ids)
        answer: m.SettledDeleted = await self._calls.call_apart(m.DeleteSettled(0, queue, state, age, chosen, all))
        return answer.count
