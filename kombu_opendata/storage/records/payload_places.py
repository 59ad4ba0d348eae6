"""Place of a payload in a staged batch or a payload segment, and its URI in the payload record.

A URI is ``<object>:<offset>:<length>:<checksum>``, or with a frame
``<object>:<offset>:<frame bytes>:<start>:<length>:<checksum>``. It is relative to the staged folder, so a store can be
moved. Numbers are decimal. The form is defined here.

===========  ====================================================================================
part         meaning
===========  ====================================================================================
object       ``batch:<job>/<file>`` or ``segment:segments/<file>``
offset       of the frame in the object, or of the envelope if it is not compressed
frame bytes  size of the frame that contains the envelope
start        offset of the envelope in the contents of the frame
length       bytes of the envelope
checksum     CRC-32 of the envelope, 8 hexadecimal digits
===========  ====================================================================================
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from ...staging.batch_format import BATCH, SCHEME, SEGMENT
from .payload import Chunks

_SEGMENT_SCHEME, SEGMENT_SUFFIX = "segment:", ".segment"
_FRAME = re.compile(rf"{SCHEME}({BATCH}):([0-9]{{1,18}}):([0-9]{{1,10}})", re.ASCII)
_IN_FRAME = re.compile(r"([0-9]{1,10}):([0-9]{1,10}):([0-9a-f]{8})", re.ASCII)
_PAYLOAD = re.compile(
    rf"(?:{SCHEME}({BATCH})|{_SEGMENT_SCHEME}({SEGMENT}))"
    r":([0-9]{1,18})(?::([0-9]{1,10}):([0-9]{1,10}))?:([0-9]{1,10}):([0-9a-f]{8})",
    re.ASCII,
)


def segment_path(token: str, number: int) -> str:
    """Return the path of a payload segment; ``token`` is 16 hexadecimal digits, unique among the runs of brokers."""
    return f"segments/{token}-{number}{SEGMENT_SUFFIX}"


def is_segment(path: str) -> bool:
    """Return True if a file is a payload segment, which has messages of publishes."""
    return path.endswith(SEGMENT_SUFFIX)


class EnvelopePlace(NamedTuple):
    """Location of an envelope in a batch or in a payload segment.

    Attributes:
        path: the batch, or the payload segment.
        offset: the offset in the object of the envelope, or of the frame that contains it.
        length: bytes of the envelope.
        checksum: CRC-32 of the envelope.
        frame_bytes: bytes of the frame; 0 if the envelope is not compressed.
        start: the offset of the envelope in the contents of its frame.
    """

    path: str
    offset: int
    length: int
    checksum: int
    frame_bytes: int = 0
    start: int = 0

    @property
    def stored_bytes(self) -> int:
        """The number of bytes to read, from ``offset`` on."""
        return self.frame_bytes or self.length

    @property
    def segment_uri(self) -> str:
        """The URI of an envelope in a payload segment."""
        frame = f"{self.frame_bytes}:{self.start}:" if self.frame_bytes else ""
        return f"{_SEGMENT_SCHEME}{self.path}:{self.offset}:{frame}{self.length}:{self.checksum:08x}"


#: the place of a payload, or of the value of a result: inline, in chunk records, or in a batch object or a segment
Place = bytes | Chunks | EnvelopePlace


def parse_payload_uri(uri: str) -> EnvelopePlace | None:
    """Return the location of a message in a batch or a segment; None if the URI is not one of such a message."""
    parts = uri.rsplit(":", 3)
    if len(parts) == 4 and (frame := _parse_frame(parts[0])) and _IN_FRAME.fullmatch(uri, len(parts[0]) + 1):
        (path, frame_offset, size), (_frame, start, length, checksum) = frame, parts
        return EnvelopePlace(path, frame_offset, int(length), int(checksum, 16), size, int(start))
    match = _PAYLOAD.fullmatch(uri)
    if match is None:
        return None
    batch, segment, offset, frame_bytes, start, length, checksum = match.groups()
    return EnvelopePlace(
        batch or segment, int(offset), int(length), int(checksum, 16), int(frame_bytes or 0), int(start or 0)
    )


@lru_cache(maxsize=64)
def _parse_frame(uri: str) -> tuple[str, int, int] | None:
    """Return path, offset and size of the frame in a URI. Up to 256 messages, mostly read together, have the same."""
    match = _FRAME.fullmatch(uri)
    return (match[1], int(match[2]), int(match[3])) if match else None
