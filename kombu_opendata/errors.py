"""The errors of kombu-opendata, grouped by what the caller must do.

======================  =================================================
group                   what to do
======================  =================================================
:class:`RetryLater`     wait and try the same call again
:class:`RequestError`   fix the call: the same one will fail again
:class:`ConnectionLost` reconnect (the client does so by itself first)
:class:`StartError`     fix the broker's configuration or environment
:class:`StoreError`     restore or repair the data
======================  =================================================

Every error carries the values it speaks of as attributes, given as keyword arguments, and travels over the wire as
(code, text, values); :data:`BY_CODE` maps a code back to its class.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple


class OpenDataError(Exception):
    """Base of all errors of this package.

    Args:
        text: what was wrong and what to do about it.
        values: the values the error speaks of (queue, limit, …); each becomes an attribute.
    """

    code: ClassVar[str] = "error"

    def __init__(self, text: str = "", **values: Any) -> None:
        super().__init__(text)
        self.text = text
        self.values = values
        for name, value in values.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.text, self.values)


def _rebuild(cls: type[OpenDataError], text: str, values: dict[str, Any]) -> OpenDataError:
    return cls(text, **values)


# ---- retry later
class RetryLater(OpenDataError):
    """The broker can't take this now; nothing was stored. Try again."""

    code = "retry_later"


class StoreFull(RetryLater):
    """The disk is full or the store does not take writes. Nothing was stored; free space, then publish again."""

    code = "store_full"


class QueueFull(RetryLater):
    """A queue of the message has reached its maximum length and refuses more. Nothing was stored in any queue."""

    code = "queue_full"


class TooManyConnections(RetryLater):
    """The broker takes no more connections now.

    Attributes:
        what: of which there are too many: ``connections``, ``strangers`` (that have not logged in), ``host`` (those of
            the client's host).
        limit: how many there may be.
    """

    code = "too_many_connections"


class TooManyLogins(RetryLater):
    """The broker checks no more logins now, of this address or at all.

    Attributes:
        seconds: after which it is worth to try again.
    """

    code = "too_many_logins"


class BrokerStopping(RetryLater):
    """The broker is shutting down."""

    code = "broker_stopping"


# ---- fix the call
class RequestError(OpenDataError):
    """The call itself is wrong."""

    code = "bad_request"


class NotFound(RequestError):
    """No such queue or exchange."""

    code = "not_found"


class InstanceNotFound(RequestError):
    """The broker has no such instance, and makes none for a client.

    Attributes:
        instance: its name.
    """

    code = "instance_not_found"


class PreconditionFailed(RequestError):
    """It exists already with other properties, or is in use, or is not empty."""

    code = "precondition_failed"


class MessageNotFound(NotFound):
    """The queue has no such message, or none any more: it was settled, it expired, it was purged."""

    code = "message_not_found"


class StaleLease(RequestError):
    """The lease is over: its time ended, or it was settled already. Nothing was changed.

    Attributes:
        queue, message_id: of the message, which another consumer may have by now.
    """

    code = "stale_lease"


class LeaseHeld(RequestError):
    """Somebody holds the message, over a connection of theirs. Nothing was changed.

    Attributes:
        queue, message_id: of the message.
        holder: the name of who holds it.
    """

    code = "lease_held"


class KeyReused(RequestError):
    """The idempotency key was used for another message. Nothing was stored.

    Attributes:
        key: the key.
        ids: of the messages that were sent with it.
    """

    code = "key_reused"


class AccessRefused(RequestError):
    """Wrong credentials, or an exclusive queue of somebody else."""

    code = "access_refused"


class MessageTooLarge(RequestError):
    """The message is over the configured maximum."""

    code = "message_too_large"


class InvalidMessage(RequestError):
    """The message can't be stored: too many headers, a header too long, or a value that can't be encoded."""

    code = "invalid_message"


class SelectorError(RequestError):
    """A filter's text can't be used.

    Attributes:
        line: where, from 1.
        column: where in the line, in characters, from 1.
        caret: that line (a part, if it is long), and below it a line with a ``^`` under the place.
    """

    code = "bad_selector"


class Unroutable(RequestError):
    """A mandatory message that no queue takes."""

    code = "unroutable"


class InvalidURL(RequestError):
    """The broker URL can't be used."""

    code = "invalid_url"


class InvalidFilter(RequestError):
    """A filter of a list names what does not exist, or too much."""

    code = "invalid_filter"


class LimitOutOfRange(RequestError):
    """A page of more items than are given at a time, or of none.

    Attributes:
        lowest, highest: the smallest and the largest page.
    """

    code = "limit_out_of_range"


class CursorError(RequestError):
    """A page can't be found by this cursor: begin with the first page."""

    code = "bad_cursor"


class MalformedCursor(CursorError):
    """Not a text that a page came with."""

    code = "malformed_cursor"


class CursorOfAnotherList(CursorError):
    """A cursor of messages for a list of attempts, or the other way round."""

    code = "cursor_of_another_list"


class CursorVersionMismatch(CursorError):
    """A cursor that another version of the broker made."""

    code = "cursor_version_mismatch"


class CursorOfOtherFilters(CursorError):
    """The page was one of a list with other filters or another order."""

    code = "cursor_of_other_filters"


class TooManyCursors(CursorError):
    """Both the next and the prev cursor were given."""

    code = "too_many_cursors"


class FailedPublish(NamedTuple):
    """A message that was sent without waiting, and was not confirmed."""

    exchange: str
    routing_key: str
    task_id: str  # Celery's id, or empty
    message_id: str  # the property message_id or correlation_id, or empty
    error: Exception


class PublishFailed(OpenDataError):
    """Messages that were sent without waiting were not confirmed: look at each one's error.

    Those whose error is ConnectionLost may be stored all the same; the others are not.

    Attributes:
        failed: list of :class:`FailedPublish`, in the order of their publishing.
    """

    code = "publish_failed"
    failed: list[FailedPublish]


# ---- reconnect
class ConnectionLost(OpenDataError):
    """The connection to the broker broke."""

    code = "connection_lost"


class GreetingTimeout(ConnectionLost):
    """The client did not say Hello in time; the broker closed the connection.

    Attributes:
        seconds: the time it had.
    """

    code = "greeting_timeout"


class ProtocolError(ConnectionLost):
    """The peer sent something that is no valid frame; the connection was closed."""

    code = "protocol_error"


class FrameTooLarge(ProtocolError):
    """A frame is over the limit of the connection."""

    code = "frame_too_large"


class VersionMismatch(RequestError):
    """Client and broker speak different protocol versions; the text says which side is older."""

    code = "version_mismatch"


# ---- fix the configuration
class StartError(OpenDataError):
    """The broker could not be started. Trying again won't help, except after a StartInterrupted."""

    code = "start_error"


class InvalidUsersFile(StartError):
    """The broker's file of users can't be used.

    Attributes:
        path: the file.
        line: which is wrong, from 1; 0: the file as a whole.
    """

    code = "invalid_users_file"


class StartInterrupted(StartError, ConnectionLost):
    """The broker was killed while it started, or has not come up in time. Connect again: the next attempt starts it.

    Errors that another attempt can't mend are of other classes, and come at once.
    """

    code = "start_interrupted"


class StoreInUse(StartError):
    """Another broker process owns this store."""

    code = "store_in_use"


class SocketPathTooLong(StartError):
    """The path of the Unix socket is longer than the operating system allows."""

    code = "socket_path_too_long"


# ---- restore the data
class StoreError(OpenDataError):
    """The store failed."""

    code = "store_error"


class StoreUnwritable(StoreError, StartError):
    """The store's folder can't be created or written."""

    code = "store_unwritable"


class UnsafeFolder(StoreUnwritable):
    """The store's folder, or a file in it, is another user's, or others may write to it."""

    code = "unsafe_folder"


class StoreFenced(StoreError):
    """Another process opened the store for writing; this one must stop."""

    code = "store_fenced"


class StoreChanged(StoreError):
    """The store was written while a reader opened it, or read what nothing held: open it again."""

    code = "store_changed"


class CorruptRecord(StoreError):
    """A record does not decode.

    Attributes:
        key: the record's key, bytes.
        offset: where in the value the decoder stopped, bytes.
    """

    code = "corrupt_record"


class NewerFormat(StoreError, StartError):
    """The store was written by a newer version of this package."""

    code = "newer_format"


# ---- no errors
class UnknownArgumentWarning(UserWarning):
    """A queue or an exchange was declared with an ``x-`` argument that has no effect here."""


def _all(cls: type[OpenDataError]) -> list[type[OpenDataError]]:
    return [cls, *(c for sub in cls.__subclasses__() for c in _all(sub))]


#: wire code → class
BY_CODE: dict[str, type[OpenDataError]] = {c.code: c for c in _all(OpenDataError)}


def wire_code(exc: OpenDataError) -> str:
    """The code of an error's nearest class that has one here; the transport's classes have AMQP's numbers."""
    return next(code for cls in type(exc).__mro__ for code, known in BY_CODE.items() if cls is known)


def from_wire(code: str, text: str, values: dict[str, Any]) -> OpenDataError:
    """The error that a peer reported; an unknown code gives the base class."""
    return BY_CODE.get(code, OpenDataError)(text, **{str(k): v for k, v in values.items() if k not in ("text", "self")})
