"""Errors of kombu-opendata, grouped by the required action of the caller.

=======================  =================================================
group                    what to do
=======================  =================================================
:class:`RetryLater`      wait and try the same call again
:class:`RequestError`    fix the call: the same call will fail again
:class:`ConnectionLost`  reconnect (the client tries that first)
:class:`StartError`      fix the broker's configuration or environment
:class:`StoreError`      restore or fix the data
=======================  =================================================

Every error has its values, such as a queue's name, in the dictionary ``values``. The values that a class annotates are
also attributes of its errors; an attribute is None if the error has no such value. The wire form of an error is
(code, text, values), and :data:`BY_CODE` maps a code back to its class.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple


class OpenDataError(Exception):
    """Base class of all errors of this package; a subclass sets its wire code in the class statement.

    Args:
        text: the problem and its remedy.
        values: the values of the error (queue, limit, …).
    """

    code: ClassVar[str] = "error"

    def __init_subclass__(cls, code: Any = None) -> None:
        if code is not None:
            cls.code = code
        for name in cls.__annotations__:
            setattr(cls, name, _value(name))

    def __init__(self, text: str = "", **values: Any) -> None:
        super().__init__(text)
        self.text = text
        self.values = values

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.text, self.values)


def _value(name: str) -> property:
    return property(lambda error: error.values.get(name))


def _rebuild(cls: type[OpenDataError], text: str, values: dict[str, Any]) -> OpenDataError:
    return cls(text, **values)


# ---- retry later
class RetryLater(OpenDataError, code="retry_later"):
    """The broker can't accept this now; nothing was stored. Try again."""


class StoreFull(RetryLater, code="store_full"):
    """The disk is full, or the store accepts no writes. Nothing was stored: free space, then publish again."""

    path: str | None  # path that could not be written


class StoreStalled(RetryLater, code="store_stalled"):
    """The store does not answer. Try again later.

    The call changed nothing, unless ``uncertain`` is True. A message that is published again over the same connection
    is stored only once.
    """

    uncertain: bool
    seconds: float  # seconds for which the store has not answered


class QueueFull(RetryLater, code="queue_full"):
    """A queue of the message has reached its maximum length and accepts no more messages.

    Nothing was stored in any queue.
    """

    queue: str | None


class QueuePaused(RetryLater, code="queue_paused"):
    """An operator has paused publishes to a queue of the message. Nothing was stored in any queue."""

    queue: str | None


class TooManyConnections(RetryLater, code="too_many_connections"):
    """The broker accepts no more connections now."""

    #: ``connections`` (all), ``strangers`` (those that have not logged in) or ``host`` (those from the client's host)
    what: str
    limit: int  # limit for these connections


class TooManyLogins(RetryLater, code="too_many_logins"):
    """The broker accepts no more logins now, from this address or from any."""

    seconds: float  # time to wait before the next attempt


class BrokerStopping(RetryLater, code="broker_stopping"):
    """The broker is shutting down."""


class NotActive(RetryLater, code="not_active"):
    """This broker is the standby of its store, or another broker took over. Nothing was done: use the active broker."""

    active: str  # its address: HOST:PORT or the path of a socket, several separated by commas; empty if unknown


class BulkInterrupted(RetryLater, code="bulk_interrupted"):
    """A bulk operation was interrupted by an error. The same call continues with the rest, and repeats nothing.

    The values also have the counts of the part that was done.
    """

    reason: str  # code of that error


# ---- fix the call
class RequestError(OpenDataError, code="bad_request"):
    """The call is invalid."""

    queue: str | None  # entities of the call
    exchange: str | None
    instance: str | None
    message_id: int | None
    job_id: str | None  # id of a staged job
    name: str | None  # name of the invalid argument, header, property or task
    argument: str | None  # invalid queue argument
    option: str | None  # invalid setting
    column: Any  # column of the invalid value in a data frame, or its character in a line of text
    row: int | None  # row of the invalid value in a data frame
    value: Any  # invalid value
    size: int | None  # its size
    limit: int | None  # limit for the size
    path: str | None  # file of the call


class ConnectionInUse(RequestError, code="connection_in_use"):
    """A signal handler, finalizer or logging handler made the call during another call on the same connection.

    The other call is changing the state that both calls need.
    """


class NotFound(RequestError, code="not_found"):
    """The queue or exchange does not exist."""


class InstanceNotFound(RequestError, code="instance_not_found"):
    """The broker has no such instance, and does not create one for a client."""


class PreconditionFailed(RequestError, code="precondition_failed"):
    """The entity exists with other properties, or is in use, or is not empty."""


class ConsumerTagInUse(PreconditionFailed, code="consumer_tag_in_use"):
    """The channel has a consumer with this tag already."""

    tag: str


class MessageNotFound(NotFound, code="message_not_found"):
    """The queue does not have this message (any more): it was settled, it expired or it was purged."""


class StaleLease(RequestError, code="stale_lease"):
    """The lease has ended: it expired, or it was settled already. Nothing was changed.

    Another consumer may have the message by now.
    """


class LeaseHeld(RequestError, code="lease_held"):
    """Another client holds the message over its connection. Nothing was changed."""

    holder: str  # name of that client


class KeyReused(RequestError, code="key_reused"):
    """The idempotency key was used for another message. Nothing was stored."""

    key: str
    ids: list[int]  # ids of the messages that were sent with it


class UniqueViolation(RequestError, code="unique_violation"):
    """Another message holds the unique key. Nothing was stored."""

    key: str
    task_id: str  # Celery id of the task that holds it; empty for another message
    message_id: int


class AccessRefused(RequestError, code="access_refused"):
    """The credentials are wrong, a permission is missing, or an exclusive queue belongs to another connection."""

    right: str | None  # missing permission (``configure``, ``write``, ``read``, ``enter`` an instance) or role
    kind: str | None  # kind of the refused entity: ``queue``, ``exchange``, ``instance`` or ``role``; ``name`` names it
    user: str | None  # user who lacks the permission


class MessageTooLarge(RequestError, code="message_too_large"):
    """The message exceeds the configured maximum."""


class BodyTooLarge(RequestError, code="body_too_large"):
    """The body would take too much memory for display: save it, and decode it with another program."""


class LimitExceeded(RequestError, code="limit_exceeded"):
    """A limit of a user, an instance or a connection is reached; see docs/limits.md."""

    limit: str  # type: ignore[assignment]  # its name, such as ``consumers``
    value: int  # value of the limit
    whose: str  # user, instance or connection that has it


class ConnectionLimitExceeded(LimitExceeded, code="connection_limit_exceeded"):
    """The user, or the instance, has reached its limit for connections."""


class InvalidMessage(RequestError, code="invalid_message"):
    """The message can't be stored: too many headers, a header too long, or a value that can't be encoded."""


class SelectorError(RequestError, code="bad_selector"):
    """The text of a filter can't be used."""

    line: int  # its line, from 1; ``column`` is the character in the line, from 1
    caret: str  # two lines: the line of the filter (of a long one, a part), and a ``^`` below the position


class Unroutable(RequestError, code="unroutable"):
    """No queue accepts a mandatory message."""

    routing_key: str | None  # routing key of the message


class InvalidURL(RequestError, code="invalid_url"):
    """The broker URL can't be used."""

    url: str | None  # URL with a masked secret


class InvalidFilter(RequestError, code="invalid_filter"):
    """A filter of a list has an invalid value, or too many values."""


class LimitOutOfRange(RequestError, code="limit_out_of_range"):
    """The page size is out of range."""

    lowest: int  # minimum page size
    highest: int  # maximum page size


class CursorError(RequestError, code="bad_cursor"):
    """The cursor does not lead to a page: start with the first page."""


class MalformedCursor(CursorError, code="malformed_cursor"):
    """The text is not a cursor of any page."""


class CursorOfAnotherList(CursorError, code="cursor_of_another_list"):
    """A cursor of messages was used for a list of attempts, or vice versa."""


class CursorVersionMismatch(CursorError, code="cursor_version_mismatch"):
    """Another version of the broker created this cursor."""


class CursorOfOtherFilters(CursorError, code="cursor_of_other_filters"):
    """The cursor is from a list with other filters or another order."""


class TooManyCursors(CursorError, code="too_many_cursors"):
    """Both the next and the prev cursor were given."""


class FailedPublish(NamedTuple):
    """Message that was sent without waiting for its confirmation, and was not confirmed."""

    exchange: str
    routing_key: str
    task_id: str  # Celery's id, or empty
    message_id: str  # the property message_id or correlation_id, or empty
    error: Exception


class PublishFailed(OpenDataError, code="publish_failed"):
    """Messages that were sent without waiting for confirmation were not confirmed: see the error of each.

    Messages whose error is ConnectionLost may be stored nevertheless; the others are not stored.
    """

    failed: list[FailedPublish]  # in the order of publishing


# ---- reconnect
class ConnectionLost(OpenDataError, code="connection_lost"):
    """The connection to the broker broke."""

    address: str | None  # address of the broker, with a masked secret
    folder: str | None  # folder of the broker, if it is embedded


class GreetingTimeout(ConnectionLost, code="greeting_timeout"):
    """The client did not send a Hello in time; the broker closed the connection."""

    seconds: float  # time limit


class ProtocolError(ConnectionLost, code="protocol_error"):
    """The peer sent an invalid frame; the connection was closed."""


class FrameTooLarge(ProtocolError, code="frame_too_large"):
    """A frame exceeds the limit of the connection."""

    size: int
    limit: int


class VersionMismatch(RequestError, code="version_mismatch"):
    """Client and broker use different protocol versions; the text names the older side."""

    peer_version: int | None  # major version
    own_version: int | None


# ---- fix the configuration
class StartError(OpenDataError, code="start_error"):
    """The broker could not be started. Another attempt fails, too, except after a StartInterrupted."""

    path: str | None  # file, folder or socket that can't be used


class InvalidConfiguration(StartError, code="invalid_configuration"):
    """Options of the broker are missing or invalid, on its command line, in its environment or in its config file."""

    faults: list[str]  # all errors, each with its source


class InvalidUsersFile(StartError, code="invalid_users_file"):
    """The broker's file of users can't be used."""

    line: int  # invalid line, from 1; 0 means the file as a whole


class StartInterrupted(StartError, ConnectionLost, code="start_interrupted"):
    """The broker was killed during startup, or was not ready in time. Connect again: the next attempt starts it.

    Errors that another attempt can't resolve have other classes and are raised immediately.
    """


class StoreInUse(StartError, code="store_in_use"):
    """Another broker process owns this store."""


class SocketPathTooLong(StartError, code="socket_path_too_long"):
    """The path of the Unix socket is longer than the operating system allows."""


# ---- restore the data
class StoreError(OpenDataError, code="store_error"):
    """The store failed."""

    path: str | None  # path of the store, or of the part that failed
    url: str | None


class StoreSilent(StoreError, code="store_silent"):
    """The store did not answer in time when it was opened."""

    deadline_seconds: float


class StoreUnwritable(StoreError, StartError, code="store_unwritable"):
    """The store's folder can't be created or written."""

    folder: str | None


class UnsafeFolder(StoreUnwritable, code="unsafe_folder"):
    """The store's folder, or a file in it, belongs to another user, or others may write to it."""


class StoreFenced(StoreError, code="store_fenced"):
    """Another process opened the store for writing; this one must stop."""


class StoreChanged(StoreError, code="store_changed"):
    """The store changed while a reader opened it, or a file was collected during a read: open the store again."""


class CorruptRecord(StoreError, code="corrupt_record"):
    """A record does not decode."""

    key: bytes
    offset: int  # offset in the value at which the decoder stopped, in bytes


class DamagedBatch(CorruptRecord, code="damaged_batch"):
    """A batch object is missing or damaged. Restore it from a backup. The messages of other objects can be read."""

    batch: str  # path of the batch in the instance's folder of staged batches


class UnsupportedFormat(StoreError, StartError, code="unsupported_format"):
    """This version of the package can't read the store's format."""


class NewerFormat(UnsupportedFormat, code="newer_format"):
    """The store was written by a newer version of this package."""

    version: int  # version of the store's format
    supported: int  # newest version that this package reads


# ---- warnings
class UnknownArgumentWarning(UserWarning):
    """A queue or an exchange was declared with an ``x-`` argument that has no effect in this broker."""


def _all(cls: type[OpenDataError]) -> list[type[OpenDataError]]:
    return [cls, *(c for sub in cls.__subclasses__() for c in _all(sub))]


#: wire code → class
BY_CODE: dict[str, type[OpenDataError]] = {c.code: c for c in _all(OpenDataError)}


def wire_code(exc: OpenDataError) -> str:
    """Return the wire code of an error: that of its nearest class in this module.

    The attribute ``code`` of the transport's subclasses is AMQP's code instead.
    """
    return next(code for cls in type(exc).__mro__ for code, known in BY_CODE.items() if cls is known)


def from_wire(code: str, text: str, values: dict[str, Any]) -> OpenDataError:
    """Return the error that a peer reported; an unknown code yields the base class."""
    return BY_CODE.get(code, OpenDataError)(text, **{str(k): v for k, v in values.items() if k not in ("text", "self")})
