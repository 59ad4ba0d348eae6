"""Batches of publishes, which are sent together and confirmed together.

A publish belongs to the batch of its context (:mod:`contextvars`): of the thread, greenlet or asyncio task that entered
the batch. It may use any connection to the batch's broker, including those of a producer pool.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ..errors import FailedPublish, OpenDataError, RequestError
from ..url import Address
from .session.unconfirmed import publish_failed

if TYPE_CHECKING:  # only apps that use batches load it
    from .session.broker_connection import BrokerConnection

log = logging.getLogger(__name__)

current_batch: ContextVar[Batch | None] = ContextVar("kombu_opendata_batch", default=None)


class Batch:
    """Publishes in flight; made by :func:`kombu_opendata.batch`.

    Batches may be nested; a batch can't be entered again before its end.

    Attributes:
        failures: publishes that are known to have failed, in order.
    """

    def __init__(self, addresses: list[Address], translate: Callable[[OpenDataError], Exception]) -> None:
        self._addresses = addresses
        self._translate = translate
        self._connections: list[BrokerConnection] = []
        self._outer: Batch | None = None
        self._token: Token[Batch | None] | None = None
        self.failures: list[FailedPublish] = []

    def covers(self, connection: BrokerConnection) -> bool:
        """Return True if the connection leads to this batch's broker; the batch's end then waits for its publishes."""
        if connection in self._connections:
            return True
        if connection.address not in self._addresses:
            return False
        self._connections.append(connection)
        return True

    def flush(self) -> None:
        """Wait until all publishes so far are confirmed.

        Raises:
            PublishFailed: some failed; ``failed`` lists them all.
        """
        self._confirm()
        self._raise_failures()

    def _confirm(self) -> None:
        for connection in self._connections:
            connection.pipeline.confirm_all()

    def _raise_failures(self) -> None:
        if self.failures:
            failed = list(self.failures)
            self.failures.clear()
            raise self._translate(publish_failed(failed))

    def __enter__(self) -> Self:
        if self._token is not None:
            raise RequestError("this batch was entered already: make another one with batch()")
        self._outer = current_batch.get()
        self._token = current_batch.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._token is not None
        current_batch.reset(self._token)
        self._token = None
        try:
            self._confirm()
        finally:
            self._connections.clear()
        if error is None:
            self._raise_failures()
        elif self.failures:
            log.error("%s (the batch ended with %r)", publish_failed(self.failures), error)


def failures_list(connection: BrokerConnection) -> list[FailedPublish] | None:
    """Return the list for failures of publishes on this connection; None if the caller waits for the reply."""
    batch = current_batch.get()
    while batch is not None:
        if batch.covers(connection):
            return batch.failures
        batch = batch._outer
    return connection.pipeline.failures if connection.options.pipelined else None
