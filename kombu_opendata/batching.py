"""Batches of publishes to an app's broker: ``with kombu_opendata.batch(app):``."""

from __future__ import annotations

from typing import Any

from .client.publish_batch import Batch
from .errors import RequestError


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
    """Return the kombu.Connection of an app's broker."""
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
