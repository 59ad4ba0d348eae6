"""Encodes and decodes bodies: JSON values, text, bytes, and what Kombu's producers send.

=======================  =================================  =============================================
sent                     content type                       read
=======================  =================================  =============================================
bytes                    ``application/data``               bytes
text                     ``text/plain``                     text
any other JSON value     ``application/json``               the value; also from Kombu's ``json`` serializer
(by Kombu)               ``application/x-msgpack``          the value
(by Kombu)               anything else, or damaged          the bytes
=======================  =================================  =============================================

Bodies that Kombu compressed (header ``compression``) are decompressed, up to :data:`MAX_DECOMPRESSED_BYTES`.
"""

from __future__ import annotations

import bz2
import lzma
import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ..errors import InvalidMessage

#: a body that would be larger stays compressed
MAX_DECOMPRESSED_BYTES = 256 << 20

_BINARY = ("application/data", "binary")
_TEXT = ("text/plain", "utf-8")
_JSON = ("application/json", "utf-8")

_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder().decode
_decode_msgpack = msgspec.msgpack.Decoder().decode

_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "application/json": _decode_json,
    "application/x-msgpack": _decode_msgpack,
    "application/x-msgspec+json": _decode_json,
}


def encode(body: Any) -> tuple[bytes | str, str, str]:
    """The encoded body, its content type and its content encoding.

    Raises:
        InvalidMessage: it is neither a JSON value nor text nor bytes.
    """
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body), *_BINARY
    try:
        if isinstance(body, str):
            if not body.isascii():
                body.encode()
            return body, *_TEXT
        encoded = _encode_json(body)
        if b"null" in encoded:
            _refuse_what_json_has_not(msgspec.to_builtins(body))
        return encoded.decode(), *_JSON
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise InvalidMessage(
            f"the body must be bytes, text or a JSON value, not this {type(body).__name__}: {exc}", name="body"
        ) from exc


def _refuse_what_json_has_not(value: Any) -> None:
    """Refuse infinities and NaN, which the encoder would write as null."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"JSON does not have {value!r}; send None, or a text")
    elif isinstance(value, dict):
        for one in value.values():
            _refuse_what_json_has_not(one)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for one in value:
            _refuse_what_json_has_not(one)


def decode(body: Any, content_type: str | None, content_encoding: str | None, headers: Mapping[Any, Any]) -> Any:
    """The value that was sent, or the bytes if they can't be decoded."""
    raw = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body)
    compression = headers.get("compression")
    if compression is not None:
        plain = _decompress(raw, str(compression))
        if plain is None:
            return raw
        raw = plain
    kind = (content_type or "").partition(";")[0].strip().lower()
    try:
        if kind in _DECODERS:
            return _DECODERS[kind](raw)
        if kind.startswith("text/") or (kind == "" and isinstance(body, str)):
            encoding = content_encoding if content_encoding not in (None, "", "binary") else "utf-8"
            return raw.decode(encoding or "utf-8")
    except (ValueError, LookupError, RecursionError):  # msgspec's are ValueErrors
        return raw
    return raw


def _decompress(raw: bytes, kind: str) -> bytes | None:
    """The decompressed bytes; None if the kind is unknown, the data is damaged, or the result would be too large."""
    try:
        if kind in ("application/x-gzip", "gzip", "zlib"):
            inflater = zlib.decompressobj()
            plain = inflater.decompress(raw, MAX_DECOMPRESSED_BYTES)
            return plain if inflater.eof else None
        if kind in ("application/x-bz2", "bzip2", "bzip"):
            unpacker = bz2.BZ2Decompressor()
            plain = unpacker.decompress(raw, MAX_DECOMPRESSED_BYTES)
            return plain if unpacker.eof else None
        if kind in ("application/x-lzma", "lzma", "xz"):
            unpacked = lzma.LZMADecompressor()
            plain = unpacked.decompress(raw, MAX_DECOMPRESSED_BYTES)
            return plain if unpacked.eof else None
    except (zlib.error, OSError, lzma.LZMAError, EOFError):
        return None
    return None
