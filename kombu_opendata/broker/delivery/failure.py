"""What ends an instance: its memory is ahead of its store, and the broker must stop and start again."""

from __future__ import annotations

import asyncio
import logging

from ...errors import OpenDataError, StoreError
from ...storage.commit.commits import Commits

log = logging.getLogger(__name__)


class Failure:
    """Whether an instance has failed.

    Attributes:
        future: gets the error.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, commits: Commits) -> None:
        self._name = name
        self._commits = commits
        self.future: asyncio.Future[None] = loop.create_future()

    def fail(self, exc: BaseException) -> None:
        """End the instance. What is durable is right, what is in memory may not be."""
        if not isinstance(exc, OpenDataError):
            log.error("instance %s failed", self._name, exc_info=exc)
            self._commits.failure = StoreError(f"the broker failed: {exc!r}")
        else:
            self._commits.failure = exc
        if not self.future.done():
            self.future.set_exception(exc)

    def fail_if_store_failed(self, exc: OpenDataError) -> None:
        """Something went wrong: end the instance if nothing can be committed any more."""
        if self._commits.failure is not None:
            self.fail(exc)

    def watch(self, task: asyncio.Task[None]) -> None:
        """Fail as a task does; for its ``add_done_callback``."""
        if not task.cancelled() and (exc := task.exception()) is not None:
            self.fail(exc)
