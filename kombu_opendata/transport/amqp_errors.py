"""The transport's errors: each is both an error of this package and one of AMQP's.

Kombu and Celery decide by AMQP's classes (and the numbers in ``code`` and ``reply_code``) whether to reconnect, retry
or give up. Callers who know this package catch :mod:`kombu_opendata.errors`. Only :func:`translate` turns the client's
errors into these.
"""

from __future__ import annotations

import builtins
from typing import Any, ClassVar

import amqp.exceptions as amqp
from kombu.exceptions import OperationalError

from .. import errors


# ---- the connection is broken: Kombu reconnects
class ConnectionLost(errors.ConnectionLost, amqp.RecoverableConnectionError, builtins.ConnectionError):
    """The connection broke and could not be resumed."""

    code: ClassVar[Any] = 320


class ProtocolError(errors.ProtocolError, amqp.RecoverableConnectionError, builtins.ConnectionError):
    """The broker sent something that is not a valid frame; the connection was closed."""

    code: ClassVar[Any] = 501


class ConsumerCancelled(errors.OpenDataError, amqp.ConsumerCancelled):
    """The broker ended a consumer, because its queue was deleted. A Celery worker declares it again."""

    code: ClassVar[Any] = 320


# ---- connecting is impossible: trying again won't help
class VersionMismatch(errors.VersionMismatch, amqp.IrrecoverableConnectionError):
    """Client and broker speak different protocol versions."""

    code: ClassVar[Any] = 530


class StartError(errors.StartError, amqp.IrrecoverableConnectionError):
    """The embedded broker could not be started."""

    code: ClassVar[Any] = 541


class StartInterrupted(
    errors.StartInterrupted, amqp.RecoverableConnectionError, OperationalError, builtins.ConnectionError
):
    """The embedded broker was killed while it started, or did not come up in time: Kombu tries again.

    Kombu tries a first connection for ``connect_timeout`` and then raises an OperationalError, which the retry policy
    of a publish does not cover. This error is an OperationalError already, so Kombu raises it unchanged, and the policy
    applies.
    """

    code: ClassVar[Any] = 320


class NotAdmitted(errors.RetryLater, amqp.RecoverableConnectionError, OperationalError, builtins.ConnectionError):
    """The broker takes no new connection now: it has too many, checks too many logins, or is stopping.

    Kombu tries again, and a publish follows its retry policy (see StartInterrupted).
    """

    code: ClassVar[Any] = 320


class SocketPathTooLong(errors.SocketPathTooLong, amqp.IrrecoverableConnectionError):
    """The folder is too deep for a Unix socket."""

    code: ClassVar[Any] = 402


class StoreUnwritable(errors.StoreUnwritable, amqp.IrrecoverableConnectionError):
    """The store's folder can't be created or written."""

    code: ClassVar[Any] = 402


class UnsafeFolder(errors.UnsafeFolder, amqp.IrrecoverableConnectionError):
    """The store's folder belongs to another user, or others may write to it."""

    code: ClassVar[Any] = 402


class UnsupportedFormat(errors.UnsupportedFormat, amqp.IrrecoverableConnectionError):
    """The store's format is not one that this version of the package reads."""

    code: ClassVar[Any] = 541


class NewerFormat(errors.NewerFormat, amqp.IrrecoverableConnectionError):
    """The store was written by a newer version of this package."""

    code: ClassVar[Any] = 541


class StoreError(errors.StoreError, amqp.IrrecoverableConnectionError):
    """The broker's store failed."""

    code: ClassVar[Any] = 541


class InstanceNotFound(errors.InstanceNotFound, amqp.NotAllowed):
    """The broker has no such instance. RabbitMQ raises this error for an unknown virtual host."""

    code: ClassVar[Any] = 530


class InvalidURL(errors.InvalidURL, ValueError):
    """The broker URL can't be used. This is not a connection error: a worker must stop, not try again."""


# ---- the call is wrong
class BadRequest(errors.RequestError, amqp.IrrecoverableChannelError):
    """The call itself is wrong."""

    code: ClassVar[Any] = 502


class NotFound(errors.NotFound, amqp.NotFound):
    """No such queue or exchange."""

    code: ClassVar[Any] = 404


class PreconditionFailed(errors.PreconditionFailed, amqp.PreconditionFailed):
    """It exists already with other properties, or it is in use, or the delivery tag is stale."""

    code: ClassVar[Any] = 406


class AccessRefused(errors.AccessRefused, amqp.AccessRefused):
    """Wrong credentials."""

    code: ClassVar[Any] = 403


class ResourceLocked(errors.AccessRefused, amqp.ResourceLocked):
    """An exclusive queue of another connection."""

    code: ClassVar[Any] = 405


class MessageTooLarge(errors.MessageTooLarge, amqp.PreconditionFailed):
    """The message is over the broker's maximum (RabbitMQ answers 406 as well)."""

    code: ClassVar[Any] = 406


class InvalidMessage(errors.InvalidMessage, amqp.PreconditionFailed):
    """The message can't be stored."""

    code: ClassVar[Any] = 406


class SelectorError(errors.SelectorError, amqp.IrrecoverableChannelError):
    """A filter's text can't be used."""

    code: ClassVar[Any] = 502


class PublishFailed(errors.PublishFailed, amqp.IrrecoverableChannelError):
    """Messages that were sent without waiting for their confirmations were not confirmed; see ``failed``."""

    code: ClassVar[Any] = 541


class Unroutable(errors.Unroutable, amqp.IrrecoverableChannelError):
    """A mandatory message that no queue takes."""

    code: ClassVar[Any] = 312


# ---- not now
class RetryLater(errors.RetryLater, amqp.RecoverableChannelError):
    """The broker can't take this now; nothing was stored."""

    code: ClassVar[Any] = 506


class StoreFull(errors.StoreFull, amqp.RecoverableChannelError):
    """The disk is full or the store takes no writes; nothing was stored."""

    code: ClassVar[Any] = 506


class QueueFull(errors.QueueFull, amqp.RecoverableChannelError):
    """A queue has reached its maximum length; nothing was stored (RabbitMQ answers a publish with a nack)."""

    code: ClassVar[Any] = 506


#: our class → the one that the transport raises; a class that is not listed is translated as its nearest base
_TRANSLATED: dict[type[errors.OpenDataError], Any] = {
    errors.ConnectionLost: ConnectionLost,
    errors.ProtocolError: ProtocolError,
    errors.VersionMismatch: VersionMismatch,
    errors.StartError: StartError,
    errors.StartInterrupted: StartInterrupted,
    errors.SocketPathTooLong: SocketPathTooLong,
    errors.StoreUnwritable: StoreUnwritable,
    errors.UnsafeFolder: UnsafeFolder,
    errors.UnsupportedFormat: UnsupportedFormat,
    errors.NewerFormat: NewerFormat,
    errors.StoreError: StoreError,
    errors.InvalidURL: InvalidURL,
    errors.InstanceNotFound: InstanceNotFound,
    errors.RequestError: BadRequest,
    errors.NotFound: NotFound,
    errors.PreconditionFailed: PreconditionFailed,
    errors.AccessRefused: AccessRefused,
    errors.MessageTooLarge: MessageTooLarge,
    errors.InvalidMessage: InvalidMessage,
    errors.SelectorError: SelectorError,
    errors.Unroutable: Unroutable,
    errors.PublishFailed: PublishFailed,
    errors.RetryLater: RetryLater,
    errors.StoreFull: StoreFull,
    errors.QueueFull: QueueFull,
    errors.OpenDataError: BadRequest,
}


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
