"""Shared components of the services of one instance, and its failure.

After an unexpected error, the memory of an instance may have changes that its store does not have, so the broker must
restart.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from ...errors import OpenDataError, StoreError
from ...storage.clock import Clock
from ...storage.commit.commits import Commits
from ..model.sessions import Session
from .outbox import Outbox
from .queue_registry import Queues
from .rate_limited_log import Notices

log = logging.getLogger(__name__)


class InstanceFailure:
    """Failure state of an instance; ``future`` fails with the error."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, commits: Commits) -> None:
        self._name = name
        self._commits = commits
        self.future: asyncio.Future[None] = loop.create_future()

    def fail(self, exc: BaseException) -> None:
        """Fail the instance. Its durable state is consistent, but its memory may not be."""
        if not isinstance(exc, OpenDataError):
            log.error("instance %s failed", self._name, exc_info=exc)
            self._commits.failure = StoreError(f"the broker failed: {exc!r}")
        else:
            self._commits.failure = exc
        if not self.future.done():
            self.future.set_exception(exc)

    def fail_if_store_failed(self, exc: OpenDataError) -> None:
        """Fail the instance after an error if commits are no longer possible."""
        if self._commits.failure is not None:
            self.fail(exc)

    def watch(self, task: asyncio.Task[None]) -> None:
        """Fail the instance if a task failed; for the task's ``add_done_callback``."""
        if not task.cancelled() and (exc := task.exception()) is not None:
            self.fail(exc)


class Traffic:
    """Counters of messages since startup. Background work slows down while they change."""

    __slots__ = ("delivered", "published")

    def __init__(self) -> None:
        self.published = 0
        self.delivered = 0

    @property
    def total(self) -> int:
        """Number that changes when a client publishes or receives a message."""
        return self.published + self.delivered


@dataclass(frozen=True, slots=True)
class Core:
    """Components that almost every service of an instance uses.

    Attributes:
        name: the instance's name.
        sessions: the sessions of its clients, by id, with and without a connection.
    """

    name: str
    clock: Clock
    commits: Commits
    sessions: dict[bytes, Session]
    outbox: Outbox
    queues: Queues
    failure: InstanceFailure
    traffic: Traffic
    notices: Notices
