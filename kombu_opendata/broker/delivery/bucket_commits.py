"""Commits without a journal: requests to a bucket.

A commit takes as long as a request to the bucket. It therefore runs in the background, in an asyncio task, the
*committer*. During the commit, turns continue to deliver messages and collect the outbox:

===========================  ===========================================  =========================================
committer                    a turn                                       then
===========================  ===========================================  =========================================
none, a client waits         collects the outbox and starts the           it commits, sends, and repeats that until
                             committer                                    the outbox is empty
running                      collects the outbox, for the next commit     the commit in progress sends only what was
                                                                          taken before it began
none, only acks are new,     sets a timer                                 they are committed with the next commit, or
and commits are slow                                                      after :data:`_UNAWAITED_SECONDS`
===========================  ===========================================  =========================================

A commit to a bucket is delayed for a short time (:class:`CommitDelay`), so that it includes the next publishes of the
clients that have just received their replies: a client that waits for each confirmation publishes again immediately. If
the next commit began with the first of these publishes, each other client would wait for two commits, and half as many
messages would be stored per second.

The committer sends only during the active lease, because a broker that was replaced must not send replies.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from ...storage.commit.commits import Commits
from .active_lease import ActiveLease
from .instance_core import InstanceFailure
from .outbox import Outbox, send
from .publish_flow_control import StoreGate

#: delay of a commit, as a fraction of the duration of the last commit, and its maximum in seconds
_PART = 0.2
_MOST_SECONDS = 0.05
_SLOW_SECONDS = 0.003
#: maximum delay of the commit of changes that no client waits for, such as acks
_UNAWAITED_SECONDS = 1.0


class CommitDelay:
    """Delay of a commit until the clients of the last commit have sent their next calls, but only for a short time.

    Attributes:
        is_slow: True if the last commit took as long as a request to a bucket.
    """

    __slots__ = ("_all_back", "_clock", "_expected", "_seconds", "_until", "is_slow")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._expected = 0
        self._seconds = 0.0  # of the last commit
        self._until = 0.0
        self._all_back = asyncio.Event()
        self.is_slow = False

    def committed(self, began: float) -> None:
        """Record the duration of a commit that began at this time."""
        self._seconds = self._clock() - began
        self.is_slow = self._seconds > _SLOW_SECONDS

    def answering(self, clients: int) -> None:
        """Record the number of clients that receive their replies now."""
        self._expected, self._until = clients, self._clock() + min(_PART * self._seconds, _MOST_SECONDS)
        self._all_back.clear()

    def have(self, clients: int) -> None:
        """Record the number of clients that wait for the next commit."""
        if clients >= self._expected:
            self._all_back.set()

    async def wait(self) -> None:
        """Wait for the clients that received replies, if there are several."""
        if self._expected > 1 and self._clock() < self._until:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._until):
                    await self._all_back.wait()


class BucketCommits:
    """Commits of one instance to its bucket."""

    __slots__ = (
        "_active_lease",
        "_commit_delay",
        "_commits",
        "_committer",
        "_failure",
        "_gate",
        "_later",
        "_loop",
        "_outbox",
    )

    def __init__(
        self, outbox: Outbox, commits: Commits, failure: InstanceFailure, active_lease: ActiveLease, gate: StoreGate
    ) -> None:
        self._outbox = outbox
        self._commits = commits
        self._failure = failure
        self._active_lease = active_lease
        self._gate = gate
        self._loop = asyncio.get_running_loop()
        self._committer: asyncio.Task[None] | None = None
        self._later: asyncio.TimerHandle | None = None
        self._commit_delay = CommitDelay(self._loop.time)

    def commit(self) -> None:
        """Commit the changes of a turn: immediately if a client waits for them."""
        if self._outbox.is_awaited or not self._commit_delay.is_slow:
            self._commit_collected()
        elif self._later is None:
            self._later = self._loop.call_later(_UNAWAITED_SECONDS, self._commit_collected)

    def stop(self) -> None:
        """Cancel the delayed commit, because a commit begins now, or at the shutdown of the instance."""
        if self._later is not None:
            self._later.cancel()
            self._later = None

    @property
    def _is_committed(self) -> bool:
        return self._outbox.is_empty and (self._commit_delay.is_slow or not self._commits.effects)

    def _commit_collected(self) -> None:
        self._outbox.collect()
        self.stop()
        self._commit_delay.have(self._outbox.outgoing)
        if self._committer is None and (self._commits.effects or not self._outbox.is_empty):
            self._committer = self._loop.create_task(self._checkpoint())
            self._committer.add_done_callback(self._checkpointed)

    async def _checkpoint(self) -> None:
        """Commit until no client waits."""
        while True:
            await self._commit_delay.wait()
            outgoing = self._outbox.take()
            began = self._loop.time()
            if self._commits.is_dirty:
                await self._commits.checkpoint()
                self._commit_delay.committed(began)
            else:
                await self._commits.checkpoint_ended()  # the replies may depend on changes in a running checkpoint
            await self._active_lease.renewed()
            self._commit_delay.answering(len(outgoing))
            send(outgoing)
            self._gate.open()
            if self._is_committed:
                return

    def _checkpointed(self, task: asyncio.Task[None]) -> None:
        self._committer = None
        self._failure.watch(task)
        if not task.cancelled() and task.exception() is None and (self._commits.effects or not self._outbox.is_empty):
            self._outbox.schedule()
