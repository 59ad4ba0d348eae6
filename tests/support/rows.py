"""Rows of a scan as SlateDB's binding gives them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kombu_opendata.storage.slatedb.ffi_native import encode_bytes
from kombu_opendata.storage.slatedb.rows import Pair, Rows, decode_rows


def encoded(pairs: Sequence[Pair], expiring: Collection[bytes] = ()) -> bytes:
    """These pairs as a sequence of KeyValue; some keys have an expiry."""
    parts = [len(pairs).to_bytes(4, "big")]
    for number, (key, value) in enumerate(pairs):
        created = b"\1" * 8
        expires = b"\1" + b"\2" * 8 if key in expiring else b"\0"
        parts += encode_bytes(key), encode_bytes(value), number.to_bytes(8, "big"), created, expires
    return b"".join(parts)


def in_one_piece(pairs: Sequence[Pair]) -> Rows:
    """Rows in runs, also where few are alike."""
    return decode_rows(encoded(pairs), few=1)
