"""Payload: the body of a message, or its URI; and the records of a new message.

===============  ==========================  ====================================================
field            type                        meaning
===============  ==========================  ====================================================
type             u8                          ``01`` inline, ``02`` URI
payload          ``Array<Byte>`` | ``Utf8``  up to 65,535 bytes of body | a URI of the body
===============  ==========================  ====================================================

A large body is in a payload segment (:mod:`.payload_places` has the URIs of segments and batches).
Where there are no segments, a body of more than 65,535 bytes is split into chunk records of the same store; its URI is
``chunks:<count>:<size>`` with the number of chunks and the bytes of the whole body, both decimal. Source: RFC 0001; the
schemes are defined here.

=========  =====  ======================================================================
segment    type   key: ``01 3f <path TB>``, in the folder of staged batches
=========  =====  ======================================================================
version    u8     1
messages   u64    payload and large value records that refer to it, at least 1
bytes      u64    that they take in it
=========  =====  ======================================================================
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ...errors import RequestError
from . import field_types, keys
from .kinds import U64, RecordKind

#: a longer body does not fit in the record itself
MAX_INLINE_BYTES = field_types.MAX_U16
#: such a body is split into chunks of this size
CHUNK_BYTES = 1 << 20
MAX_CHUNKS = 0xFFFF_FFFF

_INLINE = 1
_URI = 2
_HEAD = struct.Struct("<BH")  # type, count of bytes
_KEY, _METADATA_KEY = RecordKind.PAYLOAD.prefix, RecordKind.METADATA.prefix
_SEGMENT = struct.Struct("<BQQ")
_CHUNKS = re.compile(r"chunks:([1-9][0-9]{0,9}):(0|[1-9][0-9]{0,18})", re.ASCII)


class PayloadURI(NamedTuple):
    """A body that is stored elsewhere."""

    uri: str


class Chunks(NamedTuple):
    """A body or a result of ``size`` bytes in a number of chunk records."""

    records: int
    size: int


class SegmentUse(NamedTuple):
    """The number of messages in a payload segment, and the bytes that they take in it."""

    messages: int
    bytes: int

    def plus(self, messages: int, size: int) -> SegmentUse:
        return SegmentUse(self.messages + messages, self.bytes + size)


class NewMessage(NamedTuple):
    """The metadata record of a message, and its envelope or the payload record with the envelope's place."""

    id: int
    metadata: bytes
    uri: bytes  # the payload record; empty if the envelope is here
    envelope: bytes


def message_rows(id: int, metadata: bytes, uri: bytes, envelope: bytes) -> Iterable[tuple[bytes, bytes]]:
    """Return the rows of a :class:`NewMessage`; an envelope without ``uri`` is split into chunks if it is large."""
    if len(envelope) > MAX_INLINE_BYTES:
        return _large(id, metadata, envelope)
    number = U64.pack(id)
    return (_METADATA_KEY + number, metadata), (_KEY + number, uri or encode_inline(envelope))


def _large(id: int, metadata: bytes, envelope: bytes) -> Iterator[tuple[bytes, bytes]]:
    yield keys.metadata_key(id), metadata
    starts = range(0, len(envelope), CHUNK_BYTES)
    for number, start in enumerate(starts):
        yield keys.chunk_key(id, number), envelope[start : start + CHUNK_BYTES]
    yield keys.payload_key(id), encode_uri(chunks_uri(len(starts), len(envelope)))


def chunk_count(envelope: bytes) -> int:
    return -(-len(envelope) // CHUNK_BYTES) if len(envelope) > MAX_INLINE_BYTES else 0


def encode_inline(data: bytes) -> bytes:
    """Encode a body of at most 65,535 bytes."""
    if len(data) > MAX_INLINE_BYTES:
        raise RequestError(
            f"an inline payload of {len(data)} bytes; store more than {MAX_INLINE_BYTES} as chunks",
            limit=MAX_INLINE_BYTES,
            size=len(data),
        )
    return _HEAD.pack(_INLINE, len(data)) + data


def encode_uri(uri: str) -> bytes:
    """Encode the record of a body that is at `uri`."""
    return bytes((_URI,)) + field_types.utf8(uri)


def decode_intact(value: bytes) -> bytes | PayloadURI | None:
    """Decode the body or its URI as :func:`decode`, without the key; return None if the record may be damaged."""
    if len(value) < _HEAD.size:
        return None
    tag, size = _HEAD.unpack_from(value)
    content = value[_HEAD.size :]
    if size != len(content):
        return None
    if tag == _INLINE:
        return content
    return PayloadURI(content.decode("ascii")) if tag == _URI and content.isascii() else None


def decode(key: bytes, value: bytes) -> bytes | PayloadURI:
    """Decode the body, or its URI."""
    if (decoded := decode_intact(value)) is not None:
        return decoded
    tag, size = field_types.read(_HEAD, key, value, 0)
    if tag == _INLINE:
        if _HEAD.size + size != len(value):
            raise field_types.corrupt(key, 1, f"a payload of {size} bytes in a record of {len(value)}")
        return value[_HEAD.size :]
    if tag != _URI:
        raise field_types.corrupt(key, 0, f"payload type {tag}")
    uri, end = field_types.read_utf8(key, value, 1)
    field_types.check_end(key, value, end)
    return PayloadURI(uri)


def chunks_uri(count: int, size: int) -> str:
    """Return the URI of a body of `size` bytes in `count` chunk records."""
    if not 1 <= count <= MAX_CHUNKS or size < 0:
        raise RequestError(f"{count} chunks with {size} bytes: 1 to {MAX_CHUNKS} chunks can be stored")
    return f"chunks:{count}:{size}"


def parse_chunks_uri(uri: str) -> Chunks | None:
    """Return the chunks of a ``chunks:`` URI; None for any other URI."""
    match = _CHUNKS.fullmatch(uri)
    return Chunks(int(match[1]), int(match[2])) if match else None


def encode_segment(use: SegmentUse) -> bytes:
    return field_types.pack_versioned(_SEGMENT, "messages, bytes", *use)


def decode_segment(key: bytes, value: bytes) -> SegmentUse:
    use = SegmentUse(*field_types.read_all_versioned(_SEGMENT, key, value))
    if not use.messages:
        raise field_types.corrupt(key, 1, "a segment without messages")
    return use
