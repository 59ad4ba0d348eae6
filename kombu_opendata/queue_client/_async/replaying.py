"""Replay of stored messages, redrive of failed ones, and what is deleted from history."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Literal

from ...client import replay
from ...client.replay import Point
from ...protocol import messages as m
from .. import checks
from .base import AsyncBase

#: messages that one call redrives: other calls over the connection wait for it
_SLICE = 5000


class AsyncReplaying(AsyncBase):
    """Calls that bring messages back, or delete them for good."""

    async def start_replay(
        self, queue: str, start: Point, until: Point = "now", *, selector: str = ""
    ) -> dict[str, Any]:
        """Have a queue filled again with stored messages; see :func:`kombu_opendata.client.replay.start_replay`."""
        name = checks.name(queue, "the queue's name")
        answer: m.ReplayStarted = await self._calls.call(replay.replay_request(name, start, until, selector))
        return answer.cursor

    async def stop_replay(self, queue: str) -> dict[str, Any]:
        """End a replay where it stands; see :func:`kombu_opendata.client.replay.stop_replay`."""
        name = checks.name(queue, "the queue's name")
        answer: m.ReplayStarted = await self._calls.call(m.Replay(0, name, "now", stop=True))
        return answer.cursor

    async def replay_progress(self, *queues: str) -> list[dict[str, Any]]:
        """How far replays are; see :func:`kombu_opendata.client.replay.progress`."""
        answer: m.CursorList = await self._calls.call(m.Cursors(0, list(queues)))
        return answer.cursors

    async def redrive(
        self, queue: str, target: str = "", *, selector: str = "", ids: Iterable[int] | None = None, limit: int = 0
    ) -> m.Redriven:
        """Make failed messages available again; see :func:`kombu_opendata.client.replay.redrive`.

        It takes several calls where there are many, so that other calls of this client get their turn.
        """
        name, chosen, moved = checks.name(queue, "the queue's name"), None if ids is None else list(ids), 0
        while True:
            wanted = min(_SLICE, limit - moved) if limit > 0 else _SLICE if limit == 0 else limit
            answer: m.Redriven = await self._calls.call(m.Redrive(0, name, target, selector, chosen, wanted))
            moved += answer.moved
            if answer.moved < wanted or moved == limit:
                answer.moved = moved
                return answer

    async def delete_settled(
        self,
        queue: str,
        which: Literal["done", "failed"],
        *,
        older_than: timedelta | float | None = None,
        ids: Iterable[int] | None = None,
        all: bool = False,
    ) -> int:
        """Delete done or failed messages; see :func:`kombu_opendata.client.replay.delete_settled`."""
        name = checks.name(queue, "the queue's name")
        answer: m.SettledDeleted = await self._calls.call(replay.delete_request(name, which, older_than, ids, all))
        return answer.count
