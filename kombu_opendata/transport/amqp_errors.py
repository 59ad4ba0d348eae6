"""The transport's errors: each is both an error of this package and one of AMQP's.

Kombu and Celery decide by AMQP's classes (and the numbers in ``code`` and ``reply_code``) whether to reconnect, retry
or give up. Callers who know this package catch :mod:`kombu_opendata.errors`. Only :func:`translate` turns the client's
errors into these.
"""

from __future__ import annotations

import builtins
from typing import Any

import amqp.exceptions as amqp
from kombu.exceptions import OperationalError

from .. import errors


# ---- the connection is broken: Kombu reconnects
class ConnectionLost(errors.ConnectionLost, amqp.RecoverableConnectionError, builtins.ConnectionError, code=320):
    """The connection broke and could not be resumed."""


class ProtocolError(errors.ProtocolError, amqp.RecoverableConnectionError, builtins.ConnectionError, code=501):
    """The broker sent something that is not a valid frame; the connection was closed."""


class ConsumerCancelled(errors.OpenDataError, amqp.ConsumerCancelled, code=320):
    """The broker ended a consumer, because its queue was deleted. A Celery worker declares it again."""


# ---- connecting is impossible: trying again won't help
class VersionMismatch(errors.VersionMismatch, amqp.IrrecoverableConnectionError, code=530):
    """Client and broker speak different protocol versions."""


class StartError(errors.StartError, amqp.IrrecoverableConnectionError, code=541):
    """The embedded broker could not be started."""


class StartInterrupted(
    errors.StartInterrupted, amqp.RecoverableConnectionError, OperationalError, builtins.ConnectionError, code=320
):
    """The embedded broker was killed while it started, or did not come up in time: Kombu tries again.

    Kombu tries a first connection for ``connect_timeout`` and then raises an OperationalError, which the retry policy
    of a publish does not cover. This error is an OperationalError already, so Kombu raises it unchanged, and the policy
    applies.
    """


class NotAdmitted(
    errors.RetryLater, amqp.RecoverableConnectionError, OperationalError, builtins.ConnectionError, code=320
):
    """The broker takes no new connection now: it has too many, checks too many logins, or is stopping.

    Kombu tries again, and a publish follows its retry policy (see StartInterrupted).
    """


class SocketPathTooLong(errors.SocketPathTooLong, amqp.IrrecoverableConnectionError, code=402):
    """The folder is too deep for a Unix socket."""


class StoreUnwritable(errors.StoreUnwritable, amqp.IrrecoverableConnectionError, code=402):
    """The store's folder can't be created or written."""


class UnsafeFolder(errors.UnsafeFolder, amqp.IrrecoverableConnectionError, code=402):
    """The store's folder belongs to another user, or others may write to it."""


class UnsupportedFormat(errors.UnsupportedFormat, amqp.IrrecoverableConnectionError, code=541):
    """The store's format is not one that this version of the package reads."""


class NewerFormat(errors.NewerFormat, amqp.IrrecoverableConnectionError, code=541):
    """The store was written by a newer version of this package."""


class StoreError(errors.StoreError, amqp.IrrecoverableConnectionError, code=541):
    """The broker's store failed."""


class InstanceNotFound(errors.InstanceNotFound, amqp.NotAllowed, code=530):
    """The broker has no such instance. RabbitMQ raises this error for an unknown virtual host."""


class InvalidURL(errors.InvalidURL, ValueError):
    """The broker URL can't be used. This is not a connection error: a worker must stop, not try again."""


# ---- the call is wrong
class BadRequest(errors.RequestError, amqp.IrrecoverableChannelError, code=502):
    """The call itself is wrong."""


class NotFound(errors.NotFound, amqp.NotFound, code=404):
    """No such queue or exchange."""


class PreconditionFailed(errors.PreconditionFailed, amqp.PreconditionFailed, code=406):
    """It exists already with other properties, or it is in use, or the delivery tag is stale."""


class NotAllowed(errors.ConsumerTagInUse, amqp.NotAllowed, code=530):
    """The channel has a consumer with this tag, which continues (RabbitMQ answers 530 as well)."""


class AccessRefused(errors.AccessRefused, amqp.AccessRefused, code=403):
    """Wrong credentials."""


class ResourceLocked(errors.AccessRefused, amqp.ResourceLocked, code=405):
    """An exclusive queue of another connection."""


class MessageTooLarge(errors.MessageTooLarge, amqp.PreconditionFailed, code=406):
    """The message is over the broker's maximum (RabbitMQ answers 406 as well)."""


class LimitExceeded(errors.LimitExceeded, amqp.PreconditionFailed, code=406):
    """A limit of a user, an instance or a connection is reached (RabbitMQ answers 406 as well)."""


class ConnectionLimitExceeded(errors.ConnectionLimitExceeded, amqp.NotAllowed, code=530):
    """The user, or the instance, has as many connections as it may have (RabbitMQ answers 530 as well)."""


class InvalidMessage(errors.InvalidMessage, amqp.PreconditionFailed, code=406):
    """The message can't be stored."""


class SelectorError(errors.SelectorError, amqp.IrrecoverableChannelError, code=502):
    """A filter's text can't be used."""


class PublishFailed(errors.PublishFailed, amqp.IrrecoverableChannelError, code=541):
    """Messages that were sent without waiting for their confirmations were not confirmed; see ``failed``."""


class Unroutable(errors.Unroutable, amqp.IrrecoverableChannelError, code=312):
    """A mandatory message that no queue takes."""


# ---- not now
class RetryLater(errors.RetryLater, amqp.RecoverableChannelError, code=506):
    """The broker can't take this now; nothing was stored."""


class StoreFull(errors.StoreFull, amqp.RecoverableChannelError, code=506):
    """The disk is full or the store takes no writes; nothing was stored."""


class QueueFull(errors.QueueFull, amqp.RecoverableChannelError, code=506):
    """A queue has reached its maximum length; nothing was stored (RabbitMQ answers a publish with a nack)."""


class QueuePaused(errors.QueuePaused, amqp.RecoverableChannelError, code=506):
    """An operator has paused publishes to a queue; nothing was stored."""


#: our class → the one that the transport raises; a class that is not listed is translated as its nearest base
_TRANSLATED: dict[type[errors.OpenDataError], Any] = {
    errors.OpenDataError: BadRequest,
    **{
        cls.__bases__[0]: cls
        for cls in (
            ConnectionLost, ProtocolError, VersionMismatch, StartError, StartInterrupted, SocketPathTooLong,
            StoreUnwritable, UnsafeFolder, UnsupportedFormat, NewerFormat, StoreError, InvalidURL, InstanceNotFound,
            BadRequest, NotFound, PreconditionFailed, NotAllowed, AccessRefused, MessageTooLarge, InvalidMessage,
            SelectorError, LimitExceeded, ConnectionLimitExceeded,
            Unroutable, PublishFailed, RetryLater, StoreFull, QueueFull, QueuePaused,
        )
    },
}  # fmt: skip


def translate(error: errors.OpenDataError) -> Exception:
    """The transport's error for an error of the client, with the same text and values."""
    if isinstance(error, amqp.AMQPError):
        return error  # type: ignore[no-any-return]
    if isinstance(error, errors.AccessRefused) and "queue" in error.values:
        return ResourceLocked(error.text, **error.values)
    if isinstance(error, errors.PublishFailed) and "failed" in error.values:
        failed = [
            entry._replace(error=translate(entry.error)) if isinstance(entry.error, errors.OpenDataError) else entry
            for entry in error.values["failed"]
        ]
        return PublishFailed(error.text, **{**error.values, "failed": failed})
    for cls in type(error).__mro__:
        if cls in _TRANSLATED:
            translated: Exception = _TRANSLATED[cls](error.text, **error.values)
            return translated
    return error


class _Translated:
    def __enter__(self) -> None: ...

    def __exit__(self, _kind: type[BaseException] | None, exc: BaseException | None, _traceback: object) -> None:
        if isinstance(exc, errors.OpenDataError):
            raise translate(exc) from exc


#: ``with translated:`` raises the transport's errors in place of the client's
translated = _Translated()
