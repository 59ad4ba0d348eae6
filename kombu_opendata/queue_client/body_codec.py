"""Encoding and decoding of bodies: JSON values, text, bytes, and the bodies of Kombu's producers.

=======================  =================================  =============================================
sent                     content type                       read
=======================  =================================  =============================================
bytes                    ``application/data``               bytes
text                     ``text/plain``                     text
any other JSON value     ``application/json``               the value; also from Kombu's ``json`` serializer
(by Kombu)               ``application/x-msgpack``          the value
(by Kombu)               anything else, or damaged          the bytes
=======================  =================================  =============================================

Pickle and YAML are never loaded. Bodies that Kombu compressed are decompressed:

=================================  ======================  ==============================
header ``compression``             needs                   command that decompresses it
=================================  ======================  ==============================
``application/x-gzip``             (Python)                ``pigz -dz``: it is zlib's format
``application/x-bz2``              (Python)                ``bzip2 -d``
``application/x-lzma``             (Python)                ``xz -d``
``application/x-brotli``           ``brotli`` 1.2          ``brotli -d``
``application/zstd``               as Kombu's              ``zstd -d``
=================================  ======================  ==============================

A :class:`Budget` limits the size of a body in memory: a few kilobytes may decompress to gigabytes, and each byte of a
small body may become an object of a hundred bytes. Its elements are counted before it is decoded: in JSON the commas
and brackets outside of strings; in msgpack each byte may be an element.
"""

from __future__ import annotations

import bz2
import codecs
import lzma
import math
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ..errors import BodyTooLarge, InvalidMessage
from ..protocol.header_types import base_value

#: nesting limit of a displayed value: values are traversed by recursive functions
MAX_DISPLAYED_DEPTH = 100

_BINARY = ("application/data", "binary")
_TEXT = ("text/plain", "utf-8")
_JSON = ("application/json", "utf-8")

_encode_json = msgspec.json.Encoder(enc_hook=base_value).encode
_decode_json = msgspec.json.Decoder().decode
_decode_msgpack = msgspec.msgpack.Decoder().decode

_TEXTS_IN_JSON = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
#: decoding them takes quadratic time
_SLOW_ENCODINGS = frozenset(("idna", "punycode"))

_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "application/json": _decode_json,
    "application/x-msgpack": _decode_msgpack,
    "application/x-msgspec+json": _decode_json,
}


def encode(body: Any) -> tuple[bytes | str, str, str]:
    """Return the encoded body, its content type and its content encoding.

    Raises InvalidMessage for a body that is neither a JSON value nor text nor bytes.
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
            _check_floats(msgspec.to_builtins(body, enc_hook=base_value))
        return encoded.decode(), *_JSON
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise InvalidMessage(
            f"the body must be bytes, text or a JSON value, not this {type(body).__name__}: {exc}", name="body"
        ) from exc


def _check_floats(value: Any) -> None:
    """Refuse infinities and NaN, which the encoder would write as null."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"JSON does not have {value!r}; send None, or a text")
    elif isinstance(value, dict):
        for item in value.values():
            _check_floats(item)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            _check_floats(item)


class Budget:
    """Limits for bodies in memory; the bodies of a page share one budget."""

    def __init__(self, plain_bytes: int, elements: int) -> None:
        self.plain_bytes = plain_bytes
        self.elements = elements

    @classmethod
    def of_display(cls) -> Budget:
        """Return the budget of a body, or of a page of bodies, for display."""
        return cls(4 << 20, 250_000)

    @classmethod
    def of_use(cls) -> Budget:
        """Return the budget of a compressed body that a program receives; other bodies need none."""
        return cls(64 << 20, 2_000_000)


def decode(raw: bytes, content_type: str, content_encoding: str, headers: Mapping[Any, Any]) -> Any:
    """Return the value that was sent; return the bytes if they can't be decoded, or would take too much memory."""
    try:
        budget = Budget.of_use() if headers.get("compression") is not None else None
        return _decoded(raw, content_type, content_encoding, headers, budget)
    except BodyTooLarge:
        return raw


def displayed(
    raw: bytes, content_type: str, content_encoding: str, headers: Mapping[Any, Any], budget: Budget | None = None
) -> Any:
    """Return the value to display; return the bytes if they can't be decoded. Bodies of a page share a budget.

    Raises:
        BodyTooLarge: the body is too large, or nested too deep.
    """
    value = _decoded(raw, content_type, content_encoding, headers, budget or Budget.of_display())
    if is_deeper(value, MAX_DISPLAYED_DEPTH):
        raise _too_large(raw, headers, f"it is nested more than {MAX_DISPLAYED_DEPTH} levels deep")
    return value


def json_elements(raw: bytes, enough: int) -> int:
    """Return an upper bound of the number of elements of a JSON text.

    The first bound includes commas and brackets in strings; the exact count is only made if it exceeds ``enough``.
    """
    count = sum(map(raw.count, (b",", b"[", b"{")))
    return count if count <= enough else sum(map(_TEXTS_IN_JSON.sub(b"", raw).count, (b",", b"[", b"{")))


def _decoded(
    raw: bytes, content_type: str, content_encoding: str, headers: Mapping[Any, Any], budget: Budget | None
) -> Any:
    plain = _plain(raw, headers, budget) if budget is not None else raw
    if plain is None:
        return raw
    kind = content_type.partition(";")[0].strip().lower()
    if kind in _DECODERS and budget is not None:
        elements = len(plain) if kind == "application/x-msgpack" else json_elements(plain, budget.elements)
        if elements > budget.elements:
            raise _too_large(raw, headers, f"it may have more than {budget.elements:,} elements")
        budget.elements -= elements
    try:
        if kind in _DECODERS:
            return _DECODERS[kind](plain)
        if kind.startswith("text/"):
            encoding = codecs.lookup(content_encoding if content_encoding not in ("", "binary") else "utf-8").name
            return plain.decode(encoding) if encoding not in _SLOW_ENCODINGS else plain
    except (ValueError, LookupError, RecursionError):  # msgspec's errors are ValueErrors
        return plain
    return plain


def _plain(raw: bytes, headers: Mapping[Any, Any], budget: Budget) -> bytes | None:
    """Return the decompressed body; None if decompression is not possible."""
    method = headers.get("compression")
    try:
        plain = raw if method is None else _decompress(raw, str(method), budget.plain_bytes)
    except _TooMuch:
        reason = f"its {len(raw):,} bytes decompress to more than {budget.plain_bytes:,}"
        raise _too_large(raw, headers, reason) from None
    if method is not None and plain is not None:
        budget.plain_bytes -= len(plain)
    return plain


def _too_large(raw: bytes, headers: Mapping[Any, Any], reason: str) -> BodyTooLarge:
    with_command = _COMMANDS.get(_ALIASES.get(method := str(headers.get("compression", "")), method), "")
    advice = f"decompress it yourself with `{with_command}`" if with_command else "read it with a program of yours"
    return BodyTooLarge(f"The body is too large to display: {reason}. Save it and {advice}.", size=len(raw))


def is_deeper(value: Any, limit: int) -> bool:
    """Return True if containers are nested deeper than the limit, without recursion."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(limit):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return False
    return True


# ------------------------------------------------------------ decompression
#: limit for the memory of LZMA's dictionary; ``xz -9`` needs 65 MiB
_LZMA_MEMORY_BYTES = 128 << 20

_ALIASES = {
    "gzip": "application/x-gzip", "zlib": "application/x-gzip", "bzip2": "application/x-bz2",
    "bzip": "application/x-bz2", "lzma": "application/x-lzma", "xz": "application/x-lzma",
    "brotli": "application/x-brotli", "zstd": "application/zstd", "zstandard": "application/zstd",
}  # fmt: skip
_COMMANDS = {
    "application/x-gzip": "pigz -dz", "application/x-bz2": "bzip2 -d", "application/x-lzma": "xz -d",
    "application/x-brotli": "brotli -d", "application/zstd": "zstd -d",
}  # fmt: skip


class _TooMuch(Exception):
    """The decompressed bytes exceed the limit."""


def _decompress(raw: bytes, method: str, limit: int) -> bytes | None:
    """Return the decompressed bytes; None if the method is not available here, or the data is damaged.

    Raises _TooMuch if there are more than ``limit`` bytes.
    """
    read = _READERS.get(_ALIASES.get(method, method))
    try:
        plain = read(raw, limit + 1) if read is not None else None
    except _TooMuch:
        raise
    except Exception:  # each library has its own errors, and none may prevent the display of a message
        return None
    if plain is not None and len(plain) > limit:
        raise _TooMuch
    return plain


def _read(decompressor: Any, raw: bytes, limit: int) -> bytes | None:
    plain: bytes = decompressor.decompress(raw, limit)
    return plain if decompressor.eof or len(plain) >= limit else None


def _read_brotli(raw: bytes, limit: int) -> bytes | None:
    import brotli

    decompressor = brotli.Decompressor()
    plain: bytes = decompressor.process(raw, output_buffer_limit=limit)  # refused by versions without this argument
    return plain if decompressor.is_finished() or len(plain) >= limit else None


def _read_zstd(raw: bytes, limit: int) -> bytes | None:
    try:
        zstd = _zstd()
    except ImportError:
        import zstandard  # used by older versions of Kombu

        with zstandard.ZstdDecompressor().stream_reader(raw) as reader:
            return reader.read(limit)
    return _read(zstd.ZstdDecompressor(), raw, limit)


def _zstd() -> Any:
    import sys
    from importlib import import_module

    return import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


_READERS: dict[str, Callable[[bytes, int], bytes | None]] = {
    "application/x-gzip": lambda raw, limit: _read(zlib.decompressobj(), raw, limit),
    "application/x-bz2": lambda raw, limit: _read(bz2.BZ2Decompressor(), raw, limit),
    "application/x-lzma": lambda raw, limit: _read(lzma.LZMADecompressor(memlimit=_LZMA_MEMORY_BYTES), raw, limit),
    "application/x-brotli": _read_brotli,
    "application/zstd": _read_zstd,
}
