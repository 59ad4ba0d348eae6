"""The turn of an instance: deliver, commit, send.

Calls change the state and leave answers in the outbox. A turn follows, at most one in each turn of the event loop: it
delivers what can be delivered, commits, and sends what the outbox has. So nothing is shown before it is durable, and
everything that came in together is one commit.
"""

from __future__ import annotations

import asyncio

from ..errors import StoreFull
from ..storage.commits import Commits
from .delivery import Delivery
from .failure import Failure
from .outbox import Outbox, send
from .upkeep import Upkeep

_RETRY_SECONDS = 0.1


class Turn:
    """The turns of one instance."""

    __slots__ = ("_commits", "_committer", "_delivery", "_failure", "_has_journal", "_loop", "_outbox", "_upkeep")

    def __init__(
        self,
        outbox: Outbox,
        delivery: Delivery,
        upkeep: Upkeep,
        commits: Commits,
        failure: Failure,
        *,
        has_journal: bool,
    ) -> None:
        self._outbox = outbox
        self._delivery = delivery
        self._upkeep = upkeep
        self._commits = commits
        self._failure = failure
        self._has_journal = has_journal
        self._loop = asyncio.get_running_loop()
        self._committer: asyncio.Task[None] | None = None

    def run(self) -> None:
        """Deliver, commit, send. An unforeseen error ends the broker: only what is durable is right."""
        try:
            self._run()
        except Exception as exc:
            self._failure.fail(exc)

    def _run(self) -> None:
        outbox, commits = self._outbox, self._commits
        if commits.failure is not None:
            self._failure.fail(commits.failure)
            return
        self._delivery.deliver_all()
        self._upkeep.end_turn()
        if not self._has_journal:
            outbox.collect()
            self._commit_store()
            return
        try:
            commits.commit_journal()
        except StoreFull:
            self._loop.call_later(_RETRY_SECONDS, outbox.schedule)
            return
        outbox.collect()
        send(outbox.take())

    # ------------------------------------------------------------------ without a journal
    @property
    def _is_committed(self) -> bool:
        return self._outbox.is_empty and not self._commits.effects

    def _commit_store(self) -> None:
        if self._committer is None and not self._is_committed:
            self._committer = self._loop.create_task(self._checkpoint())
            self._committer.add_done_callback(self._checkpointed)

    async def _checkpoint(self) -> None:
        """Commit until nothing waits."""
        while not self._is_committed:
            parcels = self._outbox.take()
            if self._commits.is_dirty:
                await self._commits.checkpoint()
            else:
                await self._commits.checkpoint_ended()  # one that somebody else began may have what is to be told
            send(parcels)

    def _checkpointed(self, task: asyncio.Task[None]) -> None:
        self._committer = None
        self._failure.watch(task)
        if not task.cancelled() and task.exception() is None and not self._is_committed:
            self._outbox.schedule()
