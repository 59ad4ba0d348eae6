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

Every error carries the values that it is about, such as a queue's name, in ``values``; its class declares the most
useful ones as attributes, which are None in an error without that value. An error travels over the wire as (code, text,
values), and :data:`BY_CODE` maps a code back to its class.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, cast, overload

T = TypeVar("T")


class Value(Generic[T]):
    """An attribute of an error class: the value of the same name, None if the error does not have it."""

    def __set_name__(self, owner: type[OpenDataError], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, error: None, owner: type[OpenDataError]) -> Self: ...

    @overload
    def __get__(self, error: OpenDataError, owner: type[OpenDataError]) -> T: ...

    def __get__(self, error: OpenDataError | None, owner: type[OpenDataError]) -> Self | T:
        return self if error is None else cast(T, error.values.get(self._name))


class OpenDataError(Exception):
    """Base of all errors of this package.

    Args:
        text: what was wrong and what to do about it.
        values: the values that the error is about (queue, limit, …).
    """

    code: ClassVar[str] = "error"

    def __init__(self, text: str = "", **values: Any) -> None:
        super().__init__(text)
        self.text = text
        self.values = values

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.text, self.values)


def _rebuild(cls: type[OpenDataError], text: str, values: dict[str, Any]) -> OpenDataError:
    return cls(text, **values)


# ---- retry later
class RetryLater(OpenDataError):
    """The broker can't take this now; nothing was stored. Try again."""

    code = "retry_later"


class StoreFull(RetryLater):
    """The disk is full, or the store takes no writes. Nothing was stored: free space, then publish again.

    Attributes:
        path: what could not be written.
    """

    code = "store_full"
    path = Value[str | None]()


class QueueFull(RetryLater):
    """A queue of the message has reached its maximum length and refuses more. Nothing was stored in any queue.

    Attributes:
        queue: its name.
    """

    code = "queue_full"
    queue = Value[str | None]()


class TooManyConnections(RetryLater):
    """The broker takes no more connections now.

    Attributes:
        what: which connections are too many: ``connections`` (all), ``strangers`` (those that have not logged in) or
            ``host`` (those from the client's host).
        limit: how many there may be.
    """

    code = "too_many_connections"
    what = Value[str]()
    limit = Value[int]()


class TooManyLogins(RetryLater):
    """The broker checks no more logins now, from this address or at all.

    Attributes:
        seconds: how long to wait before the next attempt.
    """

    code = "too_many_logins"
    seconds = Value[float]()


class BrokerStopping(RetryLater):
    """The broker is shutting down."""

    code = "broker_stopping"


# ---- fix the call
class RequestError(OpenDataError):
    """The call itself is wrong.

    Attributes:
        queue, exchange, instance: names of what the call was about.
        message_id: of the message that the call was about.
        job_id: of the staged job that the call was about.
        name: of the argument, header, property or task that is wrong.
        argument: the queue argument that is wrong.
        option: the setting that is wrong.
        column, row: where in a frame of data the wrong value is.
        value: the wrong value.
        size, limit: how large it is, and how large it may be.
        path: the file that the call was about.
    """

    code = "bad_request"
    queue = Value[str | None]()
    exchange = Value[str | None]()
    instance = Value[str | None]()
    message_id = Value[int | None]()
    job_id = Value[str | None]()
    name = Value[str | None]()
    argument = Value[str | None]()
    option = Value[str | None]()
    column = Value[Any]()
    row = Value[int | None]()
    value = Value[Any]()
    size = Value[int | None]()
    limit = Value[int | None]()
    path = Value[str | None]()


class NotFound(RequestError):
    """No such queue or exchange."""

    code = "not_found"


class InstanceNotFound(RequestError):
    """The broker has no such instance, and does not create one for a client."""

    code = "instance_not_found"


class PreconditionFailed(RequestError):
    """It exists already with other properties, or is in use, or is not empty."""

    code = "precondition_failed"


class MessageNotFound(NotFound):
    """The queue does not have this message, or no longer: it was settled, it expired or it was purged."""

    code = "message_not_found"


class StaleLease(RequestError):
    """The lease has ended: its time is over, or it was settled already. Nothing was changed.

    Another consumer may have the message by now.
    """

    code = "stale_lease"


class LeaseHeld(RequestError):
    """Another client holds the message over its connection. Nothing was changed.

    Attributes:
        holder: the name of that client.
    """

    code = "lease_held"
    holder = Value[str]()


class KeyReused(RequestError):
    """The idempotency key was used for another message. Nothing was stored.

    Attributes:
        key: the key.
        ids: of the messages that were sent with it.
    """

    code = "key_reused"
    key = Value[str]()
    ids = Value[list[int]]()


class AccessRefused(RequestError):
    """Wrong credentials, or an exclusive queue of another connection."""

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
    line = Value[int]()
    caret = Value[str]()


class Unroutable(RequestError):
    """A mandatory message that no queue takes.

    Attributes:
        routing_key: of the message.
    """

    code = "unroutable"
    routing_key = Value[str | None]()


class InvalidURL(RequestError):
    """The broker URL can't be used.

    Attributes:
        url: the URL, its secret masked.
    """

    code = "invalid_url"
    url = Value[str | None]()


class InvalidFilter(RequestError):
    """A filter of a list has a wrong value, or too many values."""

    code = "invalid_filter"


class LimitOutOfRange(RequestError):
    """The page size is out of range.

    Attributes:
        lowest, highest: the smallest and the largest page.
    """

    code = "limit_out_of_range"
    lowest = Value[int]()
    highest = Value[int]()


class CursorError(RequestError):
    """This cursor does not lead to a page: begin with the first page."""

    code = "bad_cursor"


class MalformedCursor(CursorError):
    """This is not a cursor of any page."""

    code = "malformed_cursor"


class CursorOfAnotherList(CursorError):
    """A cursor of messages was given for a list of attempts, or the other way round."""

    code = "cursor_of_another_list"


class CursorVersionMismatch(CursorError):
    """Another version of the broker made this cursor."""

    code = "cursor_version_mismatch"


class CursorOfOtherFilters(CursorError):
    """The cursor is from a list with other filters or another order."""

    code = "cursor_of_other_filters"


class TooManyCursors(CursorError):
    """Both the next and the prev cursor were given."""

    code = "too_many_cursors"


class FailedPublish(NamedTuple):
    """A message that was sent without waiting for its confirmation, and was not confirmed."""

    exchange: str
    routing_key: str
    task_id: str  # Celery's id, or empty
    message_id: str  # the property message_id or correlation_id, or empty
    error: Exception


class PublishFailed(OpenDataError):
    """Messages that were sent without waiting for their confirmations were not confirmed: see the error of each.

    Those whose error is ConnectionLost may be stored all the same; the others are not.

    Attributes:
        failed: list of :class:`FailedPublish`, in the order of their publishing.
    """

    code = "publish_failed"
    failed = Value[list[FailedPublish]]()


# ---- reconnect
class ConnectionLost(OpenDataError):
    """The connection to the broker broke.

    Attributes:
        address: of the broker, its secret masked.
        folder: of the broker, if it is an embedded one.
    """

    code = "connection_lost"
    address = Value[str | None]()
    folder = Value[str | None]()


class GreetingTimeout(ConnectionLost):
    """The client did not say Hello in time; the broker closed the connection.

    Attributes:
        seconds: the time it had.
    """

    code = "greeting_timeout"
    seconds = Value[float]()


class ProtocolError(ConnectionLost):
    """The peer sent something that is not a valid frame; the connection was closed."""

    code = "protocol_error"


class FrameTooLarge(ProtocolError):
    """A frame is over the limit of the connection.

    Attributes:
        size, limit: how large it is, and how large it may be.
    """

    code = "frame_too_large"
    size = Value[int]()
    limit = Value[int]()


class VersionMismatch(RequestError):
    """Client and broker speak different protocol versions; the text says which side is older.

    Attributes:
        peer_version, own_version: the major versions.
    """

    code = "version_mismatch"
    peer_version = Value[int | None]()
    own_version = Value[int | None]()


# ---- fix the configuration
class StartError(OpenDataError):
    """The broker could not be started. Trying again won't help, except after a StartInterrupted.

    Attributes:
        path: the file, folder or socket that is wrong.
    """

    code = "start_error"
    path = Value[str | None]()


class InvalidUsersFile(StartError):
    """The broker's file of users can't be used.

    Attributes:
        line: the wrong line, from 1; 0 means the file as a whole.
    """

    code = "invalid_users_file"
    line = Value[int]()


class StartInterrupted(StartError, ConnectionLost):
    """The broker was killed while it started, or did not come up in time. Connect again: the next attempt starts it.

    Errors that another attempt can't cure have other classes and are raised at once.
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
    """The store failed.

    Attributes:
        path, url: where the store, or the part that failed, is.
    """

    code = "store_error"
    path = Value[str | None]()
    url = Value[str | None]()


class StoreUnwritable(StoreError, StartError):
    """The store's folder can't be created or written.

    Attributes:
        folder: its path.
    """

    code = "store_unwritable"
    folder = Value[str | None]()


class UnsafeFolder(StoreUnwritable):
    """The store's folder, or a file in it, belongs to another user, or others may write to it."""

    code = "unsafe_folder"


class StoreFenced(StoreError):
    """Another process opened the store for writing; this one must stop."""

    code = "store_fenced"


class StoreChanged(StoreError):
    """The store changed while a reader opened it, or something that it read was collected: open it again."""

    code = "store_changed"


class CorruptRecord(StoreError):
    """A record does not decode.

    Attributes:
        key: the record's key, bytes.
        offset: where in the value the decoder stopped, in bytes.
    """

    code = "corrupt_record"
    key = Value[bytes]()
    offset = Value[int]()


class UnsupportedFormat(StoreError, StartError):
    """The store's format is not one that this version of the package reads."""

    code = "unsupported_format"


class NewerFormat(UnsupportedFormat):
    """The store was written by a newer version of this package.

    Attributes:
        version: of the store's format.
        supported: the newest version that this package reads.
    """

    code = "newer_format"
    version = Value[int]()
    supported = Value[int]()


# ---- warnings
class UnknownArgumentWarning(UserWarning):
    """A queue or an exchange was declared with an ``x-`` argument that has no effect here."""


def _all(cls: type[OpenDataError]) -> list[type[OpenDataError]]:
    return [cls, *(c for sub in cls.__subclasses__() for c in _all(sub))]


#: wire code → class
BY_CODE: dict[str, type[OpenDataError]] = {c.code: c for c in _all(OpenDataError)}


def wire_code(exc: OpenDataError) -> str:
    """The code of an error's nearest class in this module; the ``code`` of the transport's classes is AMQP's number."""
    return next(code for cls in type(exc).__mro__ for code, known in BY_CODE.items() if cls is known)


def from_wire(code: str, text: str, values: dict[str, Any]) -> OpenDataError:
    """The error that a peer reported; an unknown code gives the base class."""
    return BY_CODE.get(code, OpenDataError)(text, **{str(k): v for k, v in values.items() if k not in ("text", "self")})
