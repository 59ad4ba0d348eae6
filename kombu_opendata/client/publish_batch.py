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
    from .session.publish_pipeline import PublishPipeline

log = logging.getLogger(__name__)

current_batch: ContextVar[Batch | None] = ContextVar("kombu_opendata_batch", default=None)


class Batch:
    """Publishes in flight; made by :func:`kombu_opendata.batch`.

    Batches may be nested; a batch can't be entered again before its end.

    Attributes:
        addresses: the addresses of the broker.
        translate: returns the exception for an error of the client.
        connections: connections that publishes of the batch have used.
        failures: publishes that are known to have failed, in order.
        count_in_flight: as in :class:`.PublishInFlight`.
    """

    def __init__(self, addresses: list[Address], translate: Callable[[OpenDataError], Exception]) -> None:
        self.addresses = addresses
        self.translate = translate
        self.connections: list[BrokerConnection] = []
        self._outer: Batch | None = None
        self._token: Token[Batch | None] | None = None
        self.failures: list[FailedPublish] = []
        self.count_in_flight: Callable[[int], object] | None = None

    def covers(self, connection: BrokerConnection) -> bool:
        """Return True if the connection leads to this batch's broker; the batch's end then waits for its publishes."""
        if connection in self.connections:
            return True
        if connection.address not in self.addresses:
            return False
        self.connections.append(connection)
        return True

    def flush(self) -> None:
        """Wait until all publishes so far are confirmed; raise PublishFailed with the list of those that ``failed``."""
        self._confirm()
        self._raise_failures()

    def _confirm(self) -> None:
        for connection in self.connections:
            connection.pipeline.confirm_all()

    def _raise_failures(self) -> None:
        if self.failures:
            failed = list(self.failures)
            self.failures.clear()
            raise self.translate(publish_failed(failed))

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
            self.connections.clear()
        if error is None:
            self._raise_failures()
        elif self.failures:
            log.error("%s (the batch ended with %r)", publish_failed(self.failures), error)


def publish_owner(connection: BrokerConnection) -> Batch | PublishPipeline | None:
    """Return the batch or pipeline that collects failed publishes of this connection; None if the caller waits."""
    batch = current_batch.get()
    while batch is not None:
        if batch.covers(connection):
            return batch
        batch = batch._outer
    return connection.pipeline if connection.options.pipelined else None
