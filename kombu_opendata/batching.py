"""``with kombu_opendata.batch(app):`` — publishes that go out together and are confirmed together.

Which publishes belong to a batch goes by context (:mod:`contextvars`): those of the thread, greenlet or asyncio task
that entered it, over any connection to the app's broker, so also over its producer pool.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .errors import FailedPublish, RequestError

if TYPE_CHECKING:
    from .client.session.broker_connection import BrokerConnection
    from .url import Address

logger = logging.getLogger(__name__)

_current: ContextVar[Batch | None] = ContextVar("kombu_opendata_batch", default=None)


class Batch:
    """Publishes in flight; made by :func:`batch`. May be nested, not entered twice at a time.

    Attributes:
        failures: publishes that are known to have failed, in order.
    """

    def __init__(self, addresses: list[Address]) -> None:
        self._addresses = addresses
        self._connections: list[BrokerConnection] = []
        self._outer: Batch | None = None
        self._token: Any = None
        self.failures: list[FailedPublish] = []

    def covers(self, connection: BrokerConnection) -> bool:
        """Whether it is one to this batch's broker; if so, it is waited for at the end."""
        if connection in self._connections:
            return True
        if connection.address not in self._addresses:
            return False
        self._connections.append(connection)
        return True

    def flush(self) -> None:
        """Wait until all publishes so far are confirmed.

        Raises:
            PublishFailed: some were not; ``failed`` has them all.
        """
        self._confirm()
        self._raise_failures()

    def _confirm(self) -> None:
        for connection in self._connections:
            connection.pipeline.confirm_all()

    def _raise_failures(self) -> None:
        if self.failures:
            from .client.session.publishes_in_flight import publish_failed
            from .transport.amqp_errors import translate

            failed = list(self.failures)
            self.failures.clear()
            raise translate(publish_failed(failed))

    def __enter__(self) -> Self:
        if self._token is not None:
            raise RequestError("this batch was entered already: make another one with batch()")
        self._outer = _current.get()
        self._token = _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _current.reset(self._token)
        self._token = None
        try:
            self._confirm()
        finally:
            self._connections.clear()
        if error is None:
            self._raise_failures()
        elif self.failures:
            from .client.session.publishes_in_flight import publish_failed

            logger.error("%s (the batch ended with %r)", publish_failed(self.failures), error)


def collector_for(connection: BrokerConnection) -> list[FailedPublish] | None:
    """Where a publish on this connection reports a failure; None when its caller waits for the confirmation."""
    batch = _current.get()
    while batch is not None:
        if batch.covers(connection):
            return batch.failures
        batch = batch._outer
    return connection.pipeline.failures if connection.options.pipelined else None


def batch(app: Any = None) -> Batch:
    """Publish many messages without waiting for each one::

        with kombu_opendata.batch(app):
            for order in orders:
                handle.delay(order)

    At the end of the block all are durable, or PublishFailed says which are not and why. An exception inside the block
    is raised after what was sent is confirmed.

    Args:
        app: a Celery app, a kombu Connection or Producer; None is Celery's current app.

    Raises:
        RequestError: its broker is none of this transport.
    """
    client = _client_of(app)
    from .transport.connection_fields import addresses_of
    from .transport.transport import Transport

    if not issubclass(client.get_transport_cls(), Transport):
        raise RequestError(f"batch() needs an opendata:// broker, and this one is {client.as_uri()}")
    return Batch(addresses_of(client))


def _client_of(app: Any) -> Any:
    """The kombu.Connection that stands for the broker."""
    if app is None:
        from celery import current_app

        app = current_app._get_current_object()
    if hasattr(app, "connection_for_write"):
        return app.connection_for_write()
    if hasattr(app, "get_transport_cls"):
        return app
    client = getattr(app, "connection", None)  # a Producer
    if not hasattr(client, "get_transport_cls"):
        raise RequestError(
            f"batch() takes a Celery app, a kombu Connection or Producer, not {type(app).__name__}: give one of them"
        )
    return client
