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

Every error carries the values that it is about, such as a queue's name, in ``values``; its class annotates the most
useful ones, which can be read as attributes and are None in an error without that value. An error travels over the wire
as (code, text, values), and :data:`BY_CODE` maps a code back to its class.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple


class OpenDataError(Exception):
    """Base of all errors of this package; a subclass gives its wire code in the class statement.

    Args:
        text: what was wrong and what to do about it.
        values: the values that the error is about (queue, limit, …).
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
    """The broker can't take this now; nothing was stored. Try again."""


class StoreFull(RetryLater, code="store_full"):
    """The disk is full, or the store takes no writes. Nothing was stored: free space, then publish again."""

    path: str | None  # what could not be written


class StoreStalled(RetryLater, code="store_stalled"):
    """The store does not answer. Try again later.

    If ``uncertain`` is false, the call changed nothing. Otherwise it may have: a message that is published again over
    the same connection is stored once all the same.
    """

    uncertain: bool
    seconds: float  # for how long the store has not answered


class QueueFull(RetryLater, code="queue_full"):
    """A queue of the message has reached its maximum length and refuses more. Nothing was stored in any queue."""

    queue: str | None


class QueuePaused(RetryLater, code="queue_paused"):
    """An operator has paused publishes to a queue of the message. Nothing was stored in any queue."""

    queue: str | None


class TooManyConnections(RetryLater, code="too_many_connections"):
    """The broker takes no more connections now."""

    #: ``connections`` (all), ``strangers`` (those that have not logged in) or ``host`` (those from the client's host)
    what: str
    limit: int  # how many there may be


class TooManyLogins(RetryLater, code="too_many_logins"):
    """The broker checks no more logins now, from this address or at all."""

    seconds: float  # how long to wait before the next attempt


class BrokerStopping(RetryLater, code="broker_stopping"):
    """The broker is shutting down."""


class NotActive(RetryLater, code="not_active"):
    """This broker is the standby of its store, or another one took over. Nothing was done: go to the active one."""

    active: str  # where that is: HOST:PORT or the path of a socket, several separated by commas; empty: not known


class BulkInterrupted(RetryLater, code="bulk_interrupted"):
    """Part of a bulk was done, then an error came. The same call goes on with the rest, and repeats nothing.

    Besides these, the values have the counts of what was done.
    """

    reason: str  # the code of that error


# ---- fix the call
class RequestError(OpenDataError, code="bad_request"):
    """The call itself is wrong."""

    queue: str | None  # these five say what the call was about
    exchange: str | None
    instance: str | None
    message_id: int | None
    job_id: str | None  # of a staged job
    name: str | None  # of the argument, header, property or task that is wrong
    argument: str | None  # the queue argument that is wrong
    option: str | None  # the setting that is wrong
    column: Any  # where the wrong value is: in a frame of data, or in a line of text
    row: int | None
    value: Any  # the wrong value
    size: int | None  # how large it is
    limit: int | None  # how large it may be
    path: str | None  # the file that the call was about


class ConnectionInUse(RequestError, code="connection_in_use"):
    """The call interrupted another call of its thread on this connection, and needs what that call is changing."""


class NotFound(RequestError, code="not_found"):
    """No such queue or exchange."""


class InstanceNotFound(RequestError, code="instance_not_found"):
    """The broker has no such instance, and does not create one for a client."""


class PreconditionFailed(RequestError, code="precondition_failed"):
    """It exists already with other properties, or is in use, or is not empty."""


class ConsumerTagInUse(PreconditionFailed, code="consumer_tag_in_use"):
    """The channel has a consumer with this tag already."""

    tag: str


class MessageNotFound(NotFound, code="message_not_found"):
    """The queue does not have this message, or no longer: it was settled, it expired or it was purged."""


class StaleLease(RequestError, code="stale_lease"):
    """The lease has ended: its time is over, or it was settled already. Nothing was changed.

    Another consumer may have the message by now.
    """


class LeaseHeld(RequestError, code="lease_held"):
    """Another client holds the message over its connection. Nothing was changed."""

    holder: str  # the name of that client


class KeyReused(RequestError, code="key_reused"):
    """The idempotency key was used for another message. Nothing was stored."""

    key: str
    ids: list[int]  # of the messages that were sent with it


class AccessRefused(RequestError, code="access_refused"):
    """Wrong credentials, a missing right, or an exclusive queue of another connection."""

    right: str | None  # the missing right (``configure``, ``write``, ``read``, ``enter`` an instance) or role
    kind: str | None  # on what: ``queue``, ``exchange``, ``instance`` or ``role``, with this ``name``
    user: str | None  # who lacks it


class MessageTooLarge(RequestError, code="message_too_large"):
    """The message is over the configured maximum."""


class BodyTooLarge(RequestError, code="body_too_large"):
    """The body would take too much memory to display it: save it, and decode it with a program of yours."""


class LimitExceeded(RequestError, code="limit_exceeded"):
    """A limit of a user, an instance or a connection is reached; see docs/limits.md."""

    limit: str  # type: ignore[assignment]  # its name, such as ``consumers``
    value: int  # what it is
    whose: str  # the user, the instance or the connection that has it


class ConnectionLimitExceeded(LimitExceeded, code="connection_limit_exceeded"):
    """The user, or the instance, has as many connections as it may have."""


class InvalidMessage(RequestError, code="invalid_message"):
    """The message can't be stored: too many headers, a header too long, or a value that can't be encoded."""


class SelectorError(RequestError, code="bad_selector"):
    """A filter's text can't be used."""

    line: int  # where, from 1; ``column`` is the character in the line, from 1
    caret: str  # that line (a part, if it is long), and below it a line with a ``^`` under the place


class Unroutable(RequestError, code="unroutable"):
    """A mandatory message that no queue takes."""

    routing_key: str | None  # of the message


class InvalidURL(RequestError, code="invalid_url"):
    """The broker URL can't be used."""

    url: str | None  # the URL, its secret masked


class InvalidFilter(RequestError, code="invalid_filter"):
    """A filter of a list has a wrong value, or too many values."""


class LimitOutOfRange(RequestError, code="limit_out_of_range"):
    """The page size is out of range."""

    lowest: int  # the smallest page
    highest: int  # the largest page


class CursorError(RequestError, code="bad_cursor"):
    """This cursor does not lead to a page: begin with the first page."""


class MalformedCursor(CursorError, code="malformed_cursor"):
    """This is not a cursor of any page."""


class CursorOfAnotherList(CursorError, code="cursor_of_another_list"):
    """A cursor of messages was given for a list of attempts, or the other way round."""


class CursorVersionMismatch(CursorError, code="cursor_version_mismatch"):
    """Another version of the broker made this cursor."""


class CursorOfOtherFilters(CursorError, code="cursor_of_other_filters"):
    """The cursor is from a list with other filters or another order."""


class TooManyCursors(CursorError, code="too_many_cursors"):
    """Both the next and the prev cursor were given."""


class FailedPublish(NamedTuple):
    """A message that was sent without waiting for its confirmation, and was not confirmed."""

    exchange: str
    routing_key: str
    task_id: str  # Celery's id, or empty
    message_id: str  # the property message_id or correlation_id, or empty
    error: Exception


class PublishFailed(OpenDataError, code="publish_failed"):
    """Messages that were sent without waiting for their confirmations were not confirmed: see the error of each.

    Those whose error is ConnectionLost may be stored all the same; the others are not.
    """

    failed: list[FailedPublish]  # in the order of their publishing


# ---- reconnect
class ConnectionLost(OpenDataError, code="connection_lost"):
    """The connection to the broker broke."""

    address: str | None  # of the broker, its secret masked
    folder: str | None  # of the broker, if it is an embedded one


class GreetingTimeout(ConnectionLost, code="greeting_timeout"):
    """The client did not say Hello in time; the broker closed the connection."""

    seconds: float  # the time it had


class ProtocolError(ConnectionLost, code="protocol_error"):
    """The peer sent something that is not a valid frame; the connection was closed."""


class FrameTooLarge(ProtocolError, code="frame_too_large"):
    """A frame is over the limit of the connection."""

    size: int
    limit: int


class VersionMismatch(RequestError, code="version_mismatch"):
    """Client and broker speak different protocol versions; the text says which side is older."""

    peer_version: int | None  # the major version
    own_version: int | None


# ---- fix the configuration
class StartError(OpenDataError, code="start_error"):
    """The broker could not be started. Trying again won't help, except after a StartInterrupted."""

    path: str | None  # the file, folder or socket that is wrong


class InvalidConfiguration(StartError, code="invalid_configuration"):
    """Options of the broker are missing or wrong, on its command line, in its environment or in its config file."""

    faults: list[str]  # all that is wrong, each with its source


class InvalidUsersFile(StartError, code="invalid_users_file"):
    """The broker's file of users can't be used."""

    line: int  # the wrong line, from 1; 0 means the file as a whole


class StartInterrupted(StartError, ConnectionLost, code="start_interrupted"):
    """The broker was killed while it started, or did not come up in time. Connect again: the next attempt starts it.

    Errors that another attempt can't cure have other classes and are raised at once.
    """


class StoreInUse(StartError, code="store_in_use"):
    """Another broker process owns this store."""


class SocketPathTooLong(StartError, code="socket_path_too_long"):
    """The path of the Unix socket is longer than the operating system allows."""


# ---- restore the data
class StoreError(OpenDataError, code="store_error"):
    """The store failed."""

    path: str | None  # where the store, or the part that failed, is
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
    """The store changed while a reader opened it, or something that it read was collected: open it again."""


class CorruptRecord(StoreError, code="corrupt_record"):
    """A record does not decode."""

    key: bytes
    offset: int  # where in the value the decoder stopped, in bytes


class DamagedBatch(CorruptRecord, code="damaged_batch"):
    """A batch object is missing or damaged. Other messages can be read: restore the object from a backup."""

    batch: str  # its path in the instance's folder of staged batches


class UnsupportedFormat(StoreError, StartError, code="unsupported_format"):
    """The store's format is not one that this version of the package reads."""


class NewerFormat(UnsupportedFormat, code="newer_format"):
    """The store was written by a newer version of this package."""

    version: int  # of the store's format
    supported: int  # the newest version that this package reads


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
