"""Metadata: what is known of a message without its body. The value of one entry of the metadata log.

==================  =======  =====================================================
field               type     meaning
==================  =======  =====================================================
message id          u64      the id of the payload
created at          i64      ms since the epoch, by the producer's clock
received at         i64      ms since the epoch, by the broker's clock
visible at          i64      ms since the epoch; not delivered before
retention           u32      seconds from received at; 0 is for ever
number of headers   u8
headers             each     key ``Utf8``, value ``Utf8``
==================  =======  =====================================================

Source: RFC 0001. The format allows a key twice, so a decoded record keeps the pairs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kombu_opendata.errors import InvalidMessage
from kombu_opendata.storage.records import types

MAX_HEADERS = 0xFF

_FIELDS = "message id, created at, received at, visible at, retention seconds, headers"
_HEAD = struct.Struct("<QqqqIB")
_LENGTHS = tuple(types.COUNT.pack(length) for length in range(256))

# Header keys are few and come again with every message. Bounded, as a producer chooses them.
_KEYS_KEPT = 1024
_keys: dict[str, bytes] = {}


class Metadata(NamedTuple):
    """Decoded metadata."""

    message_id: int
    created_at_ms: int
    received_at_ms: int
    visible_at_ms: int
    retention_seconds: int
    #: in stored order, a repeated key repeated
    header_pairs: tuple[tuple[str, str], ...]

    @property
    def headers(self) -> dict[str, str]:
        """The headers; of a repeated key the last value."""
        return dict(self.header_pairs)


def encode(
    message_id: int,
    created_at_ms: int,
    received_at_ms: int,
    visible_at_ms: int,
    retention_seconds: int,
    headers: dict[str, str] | Sequence[tuple[str, str]],
) -> bytes:
    """The stored form of a message's metadata.

    Raises:
        InvalidMessage: more than 255 headers, or a header of more than 65,535 bytes or without UTF-8 form.
        RequestError: a number out of range.
    """
    if len(headers) > MAX_HEADERS:
        raise InvalidMessage(
            f"{len(headers)} headers; a message holds at most {MAX_HEADERS}", limit=MAX_HEADERS, size=len(headers)
        )
    head = types.pack(
        _HEAD,
        _FIELDS,
        message_id,
        created_at_ms,
        received_at_ms,
        visible_at_ms,
        retention_seconds,
        len(headers),
    )
    parts = [head]
    keys = _keys
    lengths = _LENGTHS
    for name, text in headers.items() if isinstance(headers, dict) else headers:
        try:
            raw = text.encode()
            parts += keys[name], lengths[len(raw)], raw
        except (KeyError, IndexError, UnicodeEncodeError):
            parts += _encode_key(name), types.utf8(text)
    return b"".join(parts)


def encode_pairs(headers: Iterable[tuple[str, str]]) -> bytes:
    """Headers as the record has them, for :func:`encode_with`.

    Raises:
        InvalidMessage: a header of more than 65,535 bytes or without UTF-8 form.
    """
    return b"".join([_encode_key(name) + types.utf8(text) for name, text in headers])


def encode_with(
    message_id: int,
    created_at_ms: int,
    received_at_ms: int,
    visible_at_ms: int,
    retention: int,
    count: int,
    pairs: bytes,
) -> bytes:
    """As :func:`encode`, with ``count`` headers that are encoded already."""
    return _HEAD.pack(message_id, created_at_ms, received_at_ms, visible_at_ms, retention, count) + pairs


def _encode_key(name: str) -> bytes:
    encoded = types.utf8(name)
    if len(_keys) < _KEYS_KEPT and len(encoded) <= len(_LENGTHS):
        _keys[name] = encoded
    return encoded


def decode(key: bytes, value: bytes) -> Metadata:
    """The metadata in `value`."""
    message_id, created_at, received_at, visible_at, retention, headers = types.read(_HEAD, key, value, 0)
    # Read without a call per text: scans of the metadata log decode millions of these.
    texts = []
    offset = _HEAD.size
    try:
        for _ in range(2 * headers):
            start = offset + 2
            offset = start + (value[start - 2] | value[start - 1] << 8)
            texts.append(value[start:offset].decode())
    except IndexError:
        raise types.corrupt(key, len(value), f"{headers} headers announced, {len(texts) // 2} found") from None
    except UnicodeDecodeError as error:
        raise types.corrupt(key, start + error.start, "a header that is not UTF-8") from error
    if offset > len(value):
        raise types.corrupt(key, len(value), "a header that goes on after the end of the record")
    types.check_end(key, value, offset)
    return Metadata(
        message_id, created_at, received_at, visible_at, retention, tuple(zip(texts[::2], texts[1::2], strict=True))
    )


def decode_some(key: bytes, value: bytes, wanted: Mapping[bytes, str]) -> tuple[Metadata, dict[str, str]]:
    """The metadata in ``value`` without its headers, and of those the ones whose keys are ``wanted``.

    Args:
        wanted: the keys' bytes in UTF-8, and their texts.
    """
    *numbers, headers = types.read(_HEAD, key, value, 0)
    found: dict[str, str] = {}
    end = _HEAD.size
    try:
        for _ in range(headers):
            start = end + 2
            end = start + (value[end] | value[end + 1] << 8)
            name = value[start:end]
            start = end + 2
            end = start + (value[end] | value[end + 1] << 8)
            if name in wanted:
                found[wanted[name]] = value[start:end].decode()
    except IndexError:
        raise types.corrupt(key, len(value), f"{headers} headers announced, fewer found") from None
    except UnicodeDecodeError as error:
        raise types.corrupt(key, start + error.start, "a header that is not UTF-8") from error
    types.check_end(key, value, end)
    return Metadata._make([*numbers, ()]), found
