"""What a client may put into one frame, as far as it is looked at before decoding: a hostile frame costs no time.

Decoding takes time for each item, not for each byte: three million headers take seconds, in which a broker serves
nobody. So the types of the messages say how long maps and lists may be, which msgspec checks before it decodes them.
And this module looks at large frames first: only some kinds of messages may be large, and a batch has so many headers.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from ..errors import InvalidMessage, OpenDataError, ProtocolError, RequestError
from .envelope import MAX_HEADERS

T = TypeVar("T")

#: the metadata headers of a message
Texts = Annotated[dict[str, str], msgspec.Meta(max_length=MAX_HEADERS)]
MAX_ITEMS = 100_000
#: a list of names, ids or the like
Many = Annotated[list[T], msgspec.Meta(max_length=MAX_ITEMS)]
#: what one session holds
MAX_HELD = 1_000_000
Held = Annotated[list[T], msgspec.Meta(max_length=MAX_HELD)]
#: of all messages of a batch
MAX_BATCH_HEADERS = 250_000

#: a frame up to this size is decoded as it is
SMALL_FRAME_BYTES = 256 << 10
_SEND = 70
#: the kinds that may be larger: those with a body in them, and lists that have a limit of their own
_LARGE = frozenset({3, 15, 20, 45, 46, 47, 48, 49, 50, _SEND, 73, 77, 79, 91, 93, 94, 96, 97, 100})

#: the kinds that have no answer: Heartbeat, Settle, Credit, StopReading
_UNANSWERED = frozenset({2, 15, 40, 72})


class Head(msgspec.Struct, array_like=True):
    """The beginning of any message; the rest is skipped."""

    tag: int
    rid: Any = 0


class _Batch(msgspec.Struct, array_like=True):
    """A Send whose headers are not decoded."""

    tag: int
    rid: int
    seq: int
    exchange: str
    routing_key: str
    messages: Annotated[list[tuple[msgspec.Raw, msgspec.Raw, Any, Any, Any]], msgspec.Meta(max_length=MAX_ITEMS)]


class Refused(msgspec.Struct):
    """Stands for a message that is not decoded, as it breaks a limit."""

    rid: int
    error: OpenDataError


_head = msgspec.msgpack.Decoder(Head).decode
_batch = msgspec.msgpack.Decoder(_Batch).decode


def check_large(body: Any) -> Refused | None:
    """Look at a large frame; returns why it must not be decoded, or None.

    Raises:
        msgspec.MsgspecError: it is no message.
    """
    tag = _tag(body)
    if tag not in _LARGE:
        size = len(body)
        text = f"a call of this kind (number {tag}) has at most {SMALL_FRAME_BYTES} bytes, not {size}"
        return refusal(body, RequestError(text, size=size, limit=SMALL_FRAME_BYTES))
    if tag == _SEND:
        batch = _batch(body)
        count = sum(_map_length(headers) for _envelope, headers, *_rest in batch.messages)
        if count > MAX_BATCH_HEADERS:
            text = f"a batch has at most {MAX_BATCH_HEADERS} headers in all, not {count}: send several"
            return Refused(batch.rid, InvalidMessage(text, count=count, limit=MAX_BATCH_HEADERS))
    return None


def too_long(body: Any, exc: msgspec.ValidationError) -> Refused | None:
    """What a decoder's error means, if a map or a list is longer than it may be; None for any other."""
    _found, _, limit = str(exc).partition(" of length <= ")
    if not limit:
        return None
    number = int(limit.partition(" ")[0])
    if number == MAX_HEADERS:
        text = f"a message has at most {MAX_HEADERS} headers (four of them are the broker's own)"
        return refusal(body, InvalidMessage(text, limit=MAX_HEADERS))
    return refusal(body, RequestError(f"a list in this call has more than {number} items: send several", limit=number))


def refusal(body: Any, error: OpenDataError) -> Refused:
    """The error as an answer to the message.

    Raises:
        ProtocolError: the message has no number that could be answered.
    """
    head = _head(body)
    if head.tag in _UNANSWERED or type(head.rid) is not int or not head.rid:
        raise ProtocolError(error.text)
    return Refused(head.rid, error)


def _tag(body: Any) -> int:
    """The message's number, without looking at more than its first bytes; -1: there is none like ours."""
    first = body[0]
    at = 1 if 0x90 <= first <= 0x9F else 3 if first == 0xDC else 5 if first == 0xDD else 0
    if not at:
        return -1
    return body[at + 1] if body[at] == 0xCC else body[at] if body[at] < 0x80 else -1


def _map_length(data: Any) -> int:
    """How many pairs a map in msgpack has; 0 for anything else, which its type refuses."""
    view = memoryview(data)
    first = view[0]
    if 0x80 <= first <= 0x8F:
        return first & 0x0F
    size = {0xDE: 2, 0xDF: 4}.get(first, 0)
    return int.from_bytes(view[1 : 1 + size], "big")
