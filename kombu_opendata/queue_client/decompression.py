"""Decompression with a limit, for each method that Kombu registers.

=================================  ======================  ==============================
header ``compression``             needs                   command that decompresses it
=================================  ======================  ==============================
``application/x-gzip``             (Python)                ``pigz -dz``: it is zlib's format
``application/x-bz2``              (Python)                ``bzip2 -d``
``application/x-lzma``             (Python)                ``xz -d``
``application/x-brotli``           ``brotli`` 1.2          ``brotli -d``
``application/zstd``               as Kombu's              ``zstd -d``
=================================  ======================  ==============================

A few kilobytes may decompress to gigabytes, so every method is called with a limit, and other methods are not called.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Any

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


class TooMuch(Exception):
    """The decompressed bytes exceed the limit."""


def decompress(raw: bytes, method: str, limit: int) -> bytes | None:
    """Return the decompressed bytes; None if the method is not available here, or the data is damaged.

    Raises:
        TooMuch: there are more than ``limit`` bytes.
    """
    read = _READERS.get(_ALIASES.get(method, method))
    try:
        plain = read(raw, limit + 1) if read is not None else None
    except TooMuch:
        raise
    except Exception:  # each library has its own errors, and none may prevent the display of a message
        return None
    if plain is not None and len(plain) > limit:
        raise TooMuch
    return plain


def command(method: str) -> str:
    """Return the command that decompresses a file of this method; empty for an unknown method."""
    return _COMMANDS.get(_ALIASES.get(method, method), "")


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
