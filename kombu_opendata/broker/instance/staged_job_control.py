"""Cancellation of staged jobs, and the tasks that jobs send when they have ended.

The record of a job has the time of its cancellation, and its task on completion until that is sent. So both continue
after a restart of the broker.

A cancellation removes the tasks that wait in queues. It is repeated until the job has ended: a message that a consumer
holds may return to its queue, and a task that runs may be retried.

The publish of a task on completion and the record of it are in one commit, so the task is sent once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ...errors import InvalidMessage, NotFound, OpenDataError, QueueFull, StoreFull
from ...protocol.envelope import headers_of
from ...protocol.job_completion import completion_task
from ...protocol.messages import Publish, TaskCounts
from ...storage.operations.staged_jobs import Staging
from ...storage.records.staged_jobs import StagedJob
from ...storage.state.store_state import StoreState
from ..delivery.instance_core import Core
from ..delivery.rate_limited_log import WarnOnce
from ..model.queue import BrokerQueue

log = logging.getLogger(__name__)

#: puts a message into queues; returns its id
Store = Callable[[Publish, list[BrokerQueue]], int]


class JobControl:
    """Cancellations and completions of one instance's jobs."""

    def __init__(self, core: Core, state: StoreState, staging: Staging) -> None:
        self._state, self._jobs, self._staging = state, state.staged, staging
        self._commits, self._clock, self._outbox, self._queues = core.commits, core.clock, core.outbox, core.queues
        self._warn = WarnOnce(log).warn
        self._wanted = asyncio.Event()
        self._completions_ran = asyncio.Event()
        self._called: set[str] = set()  # jobs whose tasks a call is removing, and counts

    def tick(self) -> None:
        """Continue, if there are jobs that are cancelled or completed. Called twice per second."""
        if self._jobs.completing or any(job.cancelled_at_ms for job in self._jobs.active):
            self._wanted.set()

    async def run(self, store: Store) -> None:
        """Remove the tasks of cancelled jobs, and send tasks on completion, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            for job in list(self._jobs.completing.values()):
                self._complete(job, store)
            self._completions_ran.set()
            for job in [job for job in self._jobs.active if job.cancelled_at_ms and not job.settled_at_ms]:
                if job.id in self._called:
                    continue
                try:
                    await self._remove(job)
                except OpenDataError as exc:
                    if self._commits.failure is not None:
                        raise
                    self._warn("tasks of the cancelled job %r can't be removed now: %s; trying again", job.id, exc)

    # ------------------------------------------------------------------ cancellation
    async def cancel(self, job: StagedJob) -> int:
        """Cancel a job that has not ended; return the number of tasks that this call removed."""
        dropped = job.rows - job.routed
        if not job.cancelled_at_ms:
            self._staging.cancel(job)
        self._outbox.schedule()
        self._called.add(job.id)
        try:
            return dropped + await self._remove(job)
        finally:
            self._called.discard(job.id)

    async def _remove(self, job: StagedJob) -> int:
        """Remove the job's tasks that wait in queues; return their number."""
        removed = 0
        for name in list(self._state.queues if "" in job.queues else job.queues):
            queue = self._state.queues.get(name)
            if queue is not None and len(queue.messages):
                removed += await self._staging.remove_waiting(job, queue, self._outbox.schedule)
        return removed

    # ------------------------------------------------------------------ completion
    async def completed(self, job: StagedJob) -> bool:
        """Return True if an ended job has sent its task on completion, or has none; try to send it now."""
        if job.on_complete:
            self._completions_ran.clear()
            self._wanted.set()
            await self._completions_ran.wait()
        return not job.on_complete

    def _complete(self, job: StagedJob, store: Store) -> None:
        """Send the job's task on completion, in the commit that records it. If its queue is full, try again later."""
        counts = TaskCounts(0, 0, *job.ended)
        about = {"job_id": job.id, "tasks": {name: getattr(counts, name) for name in TaskCounts.__struct_fields__}}
        try:
            message = completion_task(job.on_complete, about, self._clock.now_ms())
            queues = self._targets(message)
            if queues:
                store(message, queues)
            else:
                log.warning("job %r: its task on completion is dropped: no queue takes it", job.id)
        except (QueueFull, StoreFull) as exc:
            self._warn("job %r: its task on completion waits: %s", job.id, exc)
            return
        except (NotFound, InvalidMessage) as exc:
            log.error("job %r: its task on completion is dropped: %s", job.id, exc)
        self._staging.complete(job)
        self._outbox.schedule()

    def _targets(self, message: Publish) -> list[BrokerQueue]:
        names = self._state.topology.route(
            message.exchange, message.routing_key, lambda: headers_of(message.envelope) or {}, message.headers
        )
        return self._queues.existing(names)
