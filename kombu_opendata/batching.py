"""``with kombu_opendata.batch(app):`` makes a batch of publishes to the app's broker."""

from __future__ import annotations

from typing import Any

from .client.publish_batch import Batch
from .errors import RequestError


def batch(app: Any = None) -> Batch:
    """Publish many messages without waiting for each one::

        with kombu_opendata.batch(app):
            for order in orders:
                handle.delay(order)

    At the end of the block all are durable, or PublishFailed says which are not and why. An exception inside the block
    is raised after what was sent is confirmed.

    Args:
        app: a Celery app, a kombu Connection or Producer; None means Celery's current app.

    Raises:
        RequestError: its broker has another transport.
    """
    client = _client_of(app)
    from .transport.amqp_errors import translate
    from .transport.connection_fields import addresses_of
    from .transport.transport import Transport

    if not issubclass(client.get_transport_cls(), Transport):
        raise RequestError(f"batch() needs an opendata:// broker, and this one is {client.as_uri()}")
    return Batch(addresses_of(client), translate)


def _client_of(app: Any) -> Any:
    """The kombu.Connection of an app's broker."""
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
