"""Limits of a frame that are checked before it is decoded, so that a hostile frame can't block the broker.

Decoding takes time for each item, not for each byte: three million headers take seconds, during which the broker serves
no client. The types of the messages therefore limit the length of maps and lists, which msgspec checks before it
decodes them. In addition, this module examines large frames first: only some kinds of messages may be large, and the
number of headers in a batch is limited.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from ..errors import InvalidMessage, OpenDataError, ProtocolError, RequestError
from .envelope import MAX_HEADERS

T = TypeVar("T")

#: metadata headers of a message
Texts = Annotated[dict[str, str], msgspec.Meta(max_length=MAX_HEADERS)]
MAX_ITEMS = 100_000
#: list of names, ids or similar items
Many = Annotated[list[T], msgspec.Meta(max_length=MAX_ITEMS)]
#: limit for the leases and settlements with which one session may resume
MAX_HELD = 1_000_000
Held = Annotated[list[T], msgspec.Meta(max_length=MAX_HELD)]
#: limit for the headers of all messages of a batch together
MAX_BATCH_HEADERS = 250_000

#: frames up to this size are decoded without these checks
SMALL_FRAME_BYTES = 256 << 10
_SEND = 70
#: message kinds that may be larger: those with a body, and those with a list that has its own limit
_LARGE = frozenset({
    3, 15, 20, 45, 46, 47, 48, 49, 50, _SEND, 73, 77, 79, 91, 93, 94, 96, 97, 100, 200, 210, 211, 212, 213, 230,
})  # fmt: skip

#: message kinds without a reply: Heartbeat, Settle, Credit, StopReading, ReportTasks
_UNANSWERED = frozenset({2, 15, 40, 72, 200})


class FrameHead(msgspec.Struct, array_like=True):
    """First fields of any message."""

    tag: int
    rid: Any = 0


class _Batch(msgspec.Struct, array_like=True):
    """Send message with undecoded headers."""

    tag: int
    rid: int
    seq: int
    exchange: str
    routing_key: str
    messages: Annotated[list[tuple[msgspec.Raw, msgspec.Raw, Any, Any, Any]], msgspec.Meta(max_length=MAX_ITEMS)]


class Refused(msgspec.Struct):
    """Placeholder for a message that is not decoded because it exceeds a limit."""

    rid: int
    error: OpenDataError


_head = msgspec.msgpack.Decoder(FrameHead).decode
_batch = msgspec.msgpack.Decoder(_Batch).decode


def check_large(body: Any) -> Refused | None:
    """Check a large frame; return its refusal if it must not be decoded, else None.

    Raises:
        msgspec.MsgspecError: the frame is not a message.
    """
    tag = _tag(body)
    if tag not in _LARGE:
        size = len(body)
        text = f"a call of this kind (number {tag}) may have at most {SMALL_FRAME_BYTES} bytes, not {size}"
        return refusal(body, RequestError(text, size=size, limit=SMALL_FRAME_BYTES))
    if tag == _SEND:
        batch = _batch(body)
        count = sum(_map_length(headers) for _envelope, headers, *_rest in batch.messages)
        if count > MAX_BATCH_HEADERS:
            text = f"a batch may have at most {MAX_BATCH_HEADERS} headers in all, not {count}: send several"
            return Refused(batch.rid, InvalidMessage(text, count=count, limit=MAX_BATCH_HEADERS))
    return None


def too_long(body: Any, exc: msgspec.ValidationError) -> Refused | None:
    """Return the refusal for a decoder's error about a map or list that is too long; None for any other error."""
    _found, _, limit = str(exc).partition(" of length <= ")
    if not limit:
        return None
    number = int(limit.partition(" ")[0])
    if number == MAX_HEADERS:
        text = f"a message may have at most {MAX_HEADERS} headers (four of them are the broker's own)"
        return refusal(body, InvalidMessage(text, limit=MAX_HEADERS))
    return refusal(body, RequestError(f"a list in this call has more than {number} items: send several", limit=number))


def refusal(body: Any, error: OpenDataError) -> Refused:
    """Return the error as a reply to the message.

    Raises:
        ProtocolError: the message is incomplete, or has no request number for a reply.
    """
    try:
        head = _head(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError(f"{error.text}; the rest of the message does not decode: {exc}") from exc
    if head.tag in _UNANSWERED or type(head.rid) is not int or not head.rid:
        raise ProtocolError(error.text)
    return Refused(head.rid, error)


def _tag(body: Any) -> int:
    """Return the message's number, read from the first bytes; -1 if it has none."""
    first = body[0]
    at = 1 if 0x90 <= first <= 0x9F else 3 if first == 0xDC else 5 if first == 0xDD else 0
    if not at:
        return -1
    return body[at + 1] if body[at] == 0xCC else body[at] if body[at] < 0x80 else -1


def _map_length(data: Any) -> int:
    """Return the number of pairs of a msgpack map; 0 for anything else, which the decoder refuses."""
    view = memoryview(data)
    first = view[0]
    if 0x80 <= first <= 0x8F:
        return first & 0x0F
    size = {0xDE: 2, 0xDF: 4}.get(first, 0)
    return int.from_bytes(view[1 : 1 + size], "big")
