"""Errors of the transport, each of which is both an error of this package and an AMQP error.

Kombu and Celery decide by AMQP's classes (and the numbers in ``code`` and ``reply_code``) whether to reconnect, retry
or stop. Callers that use this package directly catch :mod:`kombu_opendata.errors`. Only :func:`translate` turns the
client's errors into these.
"""

from __future__ import annotations

import builtins
from typing import Any

import amqp.exceptions as amqp
from kombu.exceptions import OperationalError

from .. import errors


# ---- raised by the transport itself
class ConsumerCancelled(errors.OpenDataError, amqp.ConsumerCancelled, code=320):
    """The broker ended a consumer because its queue was deleted. A Celery worker declares the queue again."""


class NotAdmitted(
    errors.RetryLater, amqp.RecoverableConnectionError, OperationalError, builtins.ConnectionError, code=320
):
    """The broker accepts no new connection now. Kombu retries, and a publish follows its retry policy."""


class BadRequest(errors.RequestError, amqp.IrrecoverableChannelError, code=502):
    """The call is invalid, and no class below is more specific."""


class ResourceLocked(errors.AccessRefused, amqp.ResourceLocked, code=405):
    """The queue is exclusive to another connection."""


_RECONNECT = (amqp.RecoverableConnectionError, builtins.ConnectionError)
_CANNOT_CONNECT = (amqp.IrrecoverableConnectionError,)
_WRONG_CALL = (amqp.IrrecoverableChannelError,)
_RETRY_LATER = (amqp.RecoverableChannelError,)

#: AMQP's number and Kombu's classes for each error of the client; the number is RabbitMQ's if RabbitMQ has the error
_AMQP: dict[type[errors.OpenDataError], tuple[int, tuple[Any, ...]]] = {
    # the connection is broken: Kombu reconnects
    errors.ConnectionLost: (320, _RECONNECT),
    errors.ProtocolError: (501, _RECONNECT),
    # Kombu tries a first connection for ``connect_timeout``. It then wraps the error in an OperationalError, for which
    # the retry policy of a publish does not apply. It does not wrap an error that is an OperationalError itself, so the
    # policy applies.
    errors.StartInterrupted: (320, (amqp.RecoverableConnectionError, OperationalError, builtins.ConnectionError)),
    # no connection is possible: another attempt would fail, too
    errors.VersionMismatch: (530, _CANNOT_CONNECT),
    errors.StartError: (541, _CANNOT_CONNECT),
    errors.SocketPathTooLong: (402, _CANNOT_CONNECT),
    errors.StoreUnwritable: (402, _CANNOT_CONNECT),
    errors.UnsafeFolder: (402, _CANNOT_CONNECT),
    errors.UnsupportedFormat: (541, _CANNOT_CONNECT),
    errors.NewerFormat: (541, _CANNOT_CONNECT),
    errors.StoreError: (541, _CANNOT_CONNECT),
    errors.InstanceNotFound: (530, (amqp.NotAllowed,)),
    errors.ConnectionLimitExceeded: (530, (amqp.NotAllowed,)),
    # not a connection error: a worker must exit, not retry
    errors.InvalidURL: (0, (ValueError,)),
    # the call is invalid
    errors.NotFound: (404, (amqp.NotFound,)),
    errors.PreconditionFailed: (406, (amqp.PreconditionFailed,)),
    errors.ConsumerTagInUse: (530, (amqp.NotAllowed,)),
    errors.AccessRefused: (403, (amqp.AccessRefused,)),
    errors.MessageTooLarge: (406, (amqp.PreconditionFailed,)),
    errors.LimitExceeded: (406, (amqp.PreconditionFailed,)),
    errors.InvalidMessage: (406, (amqp.PreconditionFailed,)),
    errors.UniqueViolation: (406, (amqp.PreconditionFailed,)),
    errors.SelectorError: (502, _WRONG_CALL),
    errors.PublishFailed: (541, _WRONG_CALL),
    errors.Unroutable: (312, _WRONG_CALL),
    # temporarily refused
    errors.RetryLater: (506, _RETRY_LATER),
    errors.StoreFull: (506, _RETRY_LATER),
    errors.QueueFull: (506, _RETRY_LATER),
    errors.QueuePaused: (506, _RETRY_LATER),
}


def _joined(base: type[errors.OpenDataError], number: int, kinds: tuple[Any, ...]) -> type[errors.OpenDataError]:
    """Return a class that is both ``base`` and an AMQP error. Pickle finds it by its name in this module."""
    members = {"__doc__": base.__doc__, "__module__": __name__}
    joined: type[errors.OpenDataError] = type(base.__name__, (base, *kinds), members, code=number or None)
    globals()[base.__name__] = joined
    return joined


#: client error → transport error; a class that is not listed is translated as its nearest base
_TRANSLATED: dict[type[errors.OpenDataError], Any] = {
    errors.OpenDataError: BadRequest,
    errors.RequestError: BadRequest,
    **{base: _joined(base, number, kinds) for base, (number, kinds) in _AMQP.items()},
}


def translate(error: errors.OpenDataError) -> Exception:
    """Return the transport's error for an error of the client, with the same text and values."""
    if isinstance(error, amqp.AMQPError):
        return error  # type: ignore[no-any-return]
    if isinstance(error, errors.AccessRefused) and "queue" in error.values:
        return ResourceLocked(error.text, **error.values)
    if isinstance(error, errors.PublishFailed) and "failed" in error.values:
        failed = [
            entry._replace(error=translate(entry.error)) if isinstance(entry.error, errors.OpenDataError) else entry
            for entry in error.values["failed"]
        ]
        error = errors.PublishFailed(error.text, **{**error.values, "failed": failed})
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
