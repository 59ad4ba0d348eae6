"""Base classes of all messages, and the declaration of operations.

An operation is a message that calls the broker: :func:`operation` declares its permission and how the broker runs it,
and ``Request[Reply]`` declares its reply. The broker's dispatch, the clients, the web UI and docs/permissions.md derive
from these declarations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, ClassVar, Generic, TypeVar, cast, get_args

import msgspec

from ...errors import ProtocolError
from ..envelope import MAX_HEADERS
from ..permissions import Permission

T = TypeVar("T")

#: metadata headers of a message
Texts = Annotated[dict[str, str], msgspec.Meta(max_length=MAX_HEADERS)]
MAX_ITEMS = 100_000
#: list of names, ids or similar items
Many = Annotated[list[T], msgspec.Meta(max_length=MAX_ITEMS)]
#: limit for the leases and settlements of a session that resumes
MAX_HELD = 1_000_000
Held = Annotated[list[T], msgspec.Meta(max_length=MAX_HELD)]


@dataclass(frozen=True, slots=True)
class Operation:
    """Declaration of an operation."""

    title: str  # a verb phrase that completes "the user may not …"
    permission: Permission  # the permission that the client's user needs
    reply: type[WireMessage] | None  # the type of a successful reply; None if the message has no reply
    is_query: bool  # the reply may be far larger than the message, so the number of such calls in progress is limited
    #: the call waits while a queue is being deleted, and in order with the client's other definitions
    is_definition: bool
    runs_once: bool  # the call changes state, so a client that repeats it after a reconnect gets the same reply
    stores: bool  # the call puts messages or results into memory, so it waits while the memory is full
    #: the call runs while publishes of its connection wait for memory, because it frees memory, only reads, or shows
    #: that the client is alive
    overtakes: bool
    may_be_large: bool  # the frame may exceed :data:`.SMALL_FRAME_BYTES`, because it has a body or a list with a limit
    filter_field: str  # the field with a filter, which a thread compiles before the call runs


class WireMessage(msgspec.Struct, array_like=True, gc=False, tag_field="op"):
    """Message of the wire protocol, in either direction: a msgpack array whose first element is its ``tag``."""

    #: only messages that :func:`operation` decorates have this attribute
    operation: ClassVar[Operation]


class WireRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Part of a message, which clients also return to their callers."""


def moment(ms: int) -> datetime | None:
    """Convert a time in ms since the epoch; 0 becomes None."""
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None


class Numbered(WireMessage):
    """Request, or a message about a request; ``rid`` is its number, or 0 for the connection as a whole."""

    rid: Annotated[int, msgspec.Meta(ge=0)]  # stored as u64 with the progress of some calls


Reply = TypeVar("Reply", bound=Numbered)
Message = TypeVar("Message", bound=WireMessage)


class Request(Numbered, Generic[Reply]):
    """Request of a client; its reply is a ``Reply`` or ``Failed``."""

    def reply(self, message: object) -> Reply:
        """Return a message as the reply to this request; raise ProtocolError if the message has another type."""
        if type(message) is not self.operation.reply:
            raise ProtocolError(f"the broker's reply to {type(self).__name__} is a {type(message).__name__}")
        return cast(Reply, message)


def operation(
    title: str,
    permission: Permission,
    *,
    query: bool = False,
    definition: bool = False,
    once: bool = False,
    stores: bool = False,
    overtakes: bool = False,
    large: bool = False,
    filter: str = "",
) -> Callable[[type[Message]], type[Message]]:
    """Declare a message as an operation; see :class:`Operation`."""

    def declare(message: type[Message]) -> type[Message]:
        replies = (argument for base in getattr(message, "__orig_bases__", ()) for argument in get_args(base))
        message.operation = Operation(
            title, permission, next(replies, None), query, definition, once, stores, overtakes, large, filter
        )
        return message

    return declare
