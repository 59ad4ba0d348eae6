"""Frames, and the preamble that precedes them.

========  =====  ==========================================================
preamble  bytes  sent once by each side, by the client first
========  =====  ==========================================================
magic     4      ``ODQ`` and a zero byte
major     2      u16 little endian; must be the same on both sides
minor     2      u16 little endian; the lower one applies
========  =====  ==========================================================

=========  =====  =========================================================
frame      bytes  any number of them in either direction
=========  =====  =========================================================
length     4      u32 little endian, of the body
body       n      one msgpack array, see :mod:`kombu_opendata.protocol.messages`
=========  =====  =========================================================
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import Any, Generic, TypeVar

import msgspec

from ..errors import FrameTooLarge, ProtocolError, VersionMismatch
from .envelope import DEFAULT_MAX_MESSAGE_BYTES
from .frame_limits import SMALL_FRAME_BYTES, check_large, too_long
from .messages import BrokerMessage, ClientMessage

MAJOR = 1
MINOR = 0
#: bytes for everything but the message's envelope
FRAME_ROOM_BYTES = 16 << 20
DEFAULT_MAX_FRAME_BYTES = DEFAULT_MAX_MESSAGE_BYTES + FRAME_ROOM_BYTES
#: limit for a frame that a broker accepts before the client has logged in
HELLO_MAX_FRAME_BYTES = 8 << 10

_TLS_RECORD = b"\x16\x03"  # a TLS handshake of any version
_PREAMBLE = struct.Struct("<4sHH")
_LENGTH = struct.Struct("<I")
MAGIC = b"ODQ\0"
PREAMBLE_BYTES = _PREAMBLE.size
PREAMBLE = _PREAMBLE.pack(MAGIC, MAJOR, MINOR)

_encode = msgspec.msgpack.Encoder().encode
client_messages: msgspec.msgpack.Decoder[ClientMessage] = msgspec.msgpack.Decoder(ClientMessage)
broker_messages: msgspec.msgpack.Decoder[BrokerMessage] = msgspec.msgpack.Decoder(BrokerMessage)

M = TypeVar("M")


def check_preamble(data: bytes, *, peer: str) -> None:
    """Check a peer's preamble of :data:`PREAMBLE_BYTES` bytes.

    Raises:
        ProtocolError: the bytes are not a preamble of this protocol.
        VersionMismatch: the major version differs; the text names the older side.
    """
    magic, major, _minor = _PREAMBLE.unpack(data)
    if data[:2] == _TLS_RECORD:
        raise ProtocolError(
            f"the {peer} began with TLS, but this address does not use TLS: write opendata:// instead of opendatas:// "
            "in the URL, or start the broker with --tls-cert and --tls-key"
        )
    if magic != MAGIC:
        raise ProtocolError(f"the {peer} does not speak the opendata protocol (it began with {data!r})")
    if major != MAJOR:
        older, newer = (peer, "this side") if major < MAJOR else ("this side", peer)
        raise VersionMismatch(
            f"protocol versions differ: the {peer} speaks {major}, this side speaks {MAJOR}; "
            f"{older if older == 'this side' else 'the ' + older} is older than "
            f"{newer if newer == 'this side' else 'the ' + newer} and must be upgraded (kombu-opendata)",
            peer_version=major,
            own_version=MAJOR,
        )


def frame(message: Any) -> bytes:
    """Return a message as a frame."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


class FrameReader(Generic[M]):
    """Reader that splits a byte stream into messages.

    Args:
        decoder: ``client_messages`` or ``broker_messages``.
        max_frame_bytes: a longer frame raises FrameTooLarge as soon as its length is known.
        bounded: turns a frame that breaks a limit of :mod:`.frame_limits` into a :class:`Refused`.

    Attributes:
        rest: the received bytes of an incomplete frame.
    """

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[M],
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        *,
        bounded: bool = False,
    ) -> None:
        self._decode = decoder.decode
        self._bounded = bounded
        self.max_frame_bytes = max_frame_bytes
        self.rest = bytearray()

    def clear(self) -> None:
        """Discard an incomplete frame."""
        self.rest = bytearray()

    def feed_all(self, data: Any) -> list[M]:
        """Return messages as :meth:`feed`, for bytes or a memoryview.

        Fast for a single whole frame, as most replies are.
        """
        length = len(data) - 4
        if length > 0 and not self.rest and _LENGTH.unpack_from(data)[0] == length <= self.max_frame_bytes:
            try:
                return [self._decode(data[4:])]
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
                raise ProtocolError(f"a frame does not decode: {exc}") from exc
        return list(self.feed(data))

    def _decode_large(self, body: memoryview) -> Any:
        with body:
            refused = check_large(body)
            return self._decode(body) if refused is None else refused

    def _refused(self, body: bytes, exc: Exception) -> Any:
        """Return the refusal of a frame that does not decode because it exceeds a limit.

        Raises:
            ProtocolError: the frame is not a message.
        """
        refused = too_long(body, exc) if self._bounded and isinstance(exc, msgspec.ValidationError) else None
        if refused is None:
            raise ProtocolError(f"a frame does not decode: {exc}") from exc
        return refused

    def feed(self, data: bytes) -> Generator[M, None, None]:
        """Yield the messages that ``data`` completes.

        If the generator is closed before the end, the next call continues.

        Raises:
            FrameTooLarge: a frame exceeds the limit.
            ProtocolError: a frame's body is not a message.
        """
        buffer = self.rest
        if buffer:
            buffer += data
            view: Any = buffer
        else:
            view = data
        start, end = 0, len(view)
        try:
            while end - start >= 4:
                length = _LENGTH.unpack_from(view, start)[0]
                if length > self.max_frame_bytes:
                    raise FrameTooLarge(
                        f"a frame of {length} bytes exceeds the limit of {self.max_frame_bytes}",
                        size=length,
                        limit=self.max_frame_bytes,
                    )
                stop = start + 4 + length
                if stop > end:
                    break
                try:
                    with memoryview(view) as window:
                        if length > SMALL_FRAME_BYTES and self._bounded:
                            message = self._decode_large(window[start + 4 : stop])
                        else:
                            message = self._decode(window[start + 4 : stop])
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
                    with memoryview(view) as window:
                        message = self._refused(bytes(window[start + 4 : stop]), exc)
                start = stop
                yield message
        finally:
            if view is buffer:
                del buffer[:start]
            else:
                buffer += memoryview(data)[start:]
