"""Celery broker OpenData-Queue: messages, queues and history in a folder or in an object-store bucket.

The import of this package registers the broker URLs with Kombu; it loads neither the transport nor the storage engine.
Celery apps need no import: Kombu loads this package's entry point for the serializer, which imports the package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kombu.transport import TRANSPORT_ALIASES

from .client.publish_batch import Batch
from .errors import (
    AccessRefused,
    ConnectionLost,
    FailedPublish,
    InvalidMessage,
    InvalidURL,
    MessageTooLarge,
    NotFound,
    OpenDataError,
    PreconditionFailed,
    ProtocolError,
    PublishFailed,
    RequestError,
    RetryLater,
    StartError,
    StoreError,
    StoreFull,
    UniqueViolation,
    Unroutable,
    VersionMismatch,
)
from .url import STORE_SCHEMES
from .version import __version__

if TYPE_CHECKING:
    from .celery_integration.async_publisher import apply_async, apply_async_many
    from .celery_integration.awaitable_result import AwaitableResult
    from .celery_integration.delay_key import delay_key
    from .celery_integration.jobs import JobHandle, find_job
    from .celery_integration.unique_tasks import Unique
    from .queue_client import AsyncQueueClient, QueueClient

__all__ = [
    "AccessRefused", "AsyncQueueClient", "AwaitableResult", "Batch", "ConnectionLost", "FailedPublish",
    "InvalidMessage", "InvalidURL", "JobHandle", "MessageTooLarge", "NotFound", "OpenDataError", "PreconditionFailed",
    "ProtocolError", "PublishFailed", "QueueClient", "RequestError", "RetryLater", "StartError", "StoreError",
    "StoreFull", "Unique", "UniqueViolation", "Unroutable", "VersionMismatch", "__version__", "apply_async",
    "apply_async_many", "batch", "delay_key", "find_job",
]  # fmt: skip

TRANSPORT_ALIASES.update(
    {
        "opendata": "kombu_opendata.transport:Transport",
        "opendatas": "kombu_opendata.transport:TLSTransport",
        "opendata+memory": "kombu_opendata.transport:Transport",
    }
)
# The URL of an object store is not a broker URL: the transport reports the remedy, instead of "No such transport".
for _scheme in STORE_SCHEMES - {"http", "https"}:
    for _alias in (_scheme, f"opendata+{_scheme}"):
        TRANSPORT_ALIASES.setdefault(_alias, "kombu_opendata.transport:Transport")


#: names that are loaded on their first use, as most processes do not need them
_LAZY = {
    "AsyncQueueClient": "queue_client",
    "AwaitableResult": "celery_integration.awaitable_result",
    "JobHandle": "celery_integration.jobs",
    "QueueClient": "queue_client",
    "Unique": "celery_integration.unique_tasks",
    "apply_async": "celery_integration.async_publisher",
    "apply_async_many": "celery_integration.async_publisher",
    "delay_key": "celery_integration.delay_key",
    "find_job": "celery_integration.jobs",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def batch(app: Any = None) -> Batch:
    """Publish many messages without waiting for each of them.

    For example::

        with kombu_opendata.batch(app):
            for order in orders:
                handle.delay(order)

    At the end of the block all publishes are durable, or PublishFailed lists the failed ones with their errors. An
    exception inside the block is raised after the sent messages are confirmed.

    Args:
        app: a Celery app, a kombu Connection or Producer; None means Celery's current app.

    Raises:
        RequestError: the app's broker has another transport.
    """
    client = _client_of(app)
    from .transport.amqp_errors import translate
    from .transport.connection_fields import addresses_of
    from .transport.transport import Transport

    if not issubclass(client.get_transport_cls(), Transport):
        raise RequestError(f"batch() needs an opendata:// broker, and this one is {client.as_uri()}")
    return Batch(addresses_of(client), translate)


def _client_of(app: Any) -> Any:
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
