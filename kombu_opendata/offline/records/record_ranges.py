"""Kinds of records by their keys: which kind a key has, and the ranges of keys between some kinds."""

from __future__ import annotations

from collections.abc import Iterable

from ...storage.records import keys
from ...storage.records.keys import RecordKind


def kind_of(key: bytes) -> RecordKind | None:
    """The kind of record that a key belongs to by its beginning, whether or not the rest is valid."""
    for kind in RecordKind:
        if kind is RecordKind.SEQ_BLOCK:
            continue
        start, end = keys.kind_range(kind)
        if start <= key < end or (kind is RecordKind.METADATA and key.startswith(kind.prefix)):
            return kind
    return RecordKind.SEQ_BLOCK if key == keys.SEQ_BLOCK_KEY else None


def between(kinds: Iterable[RecordKind]) -> list[tuple[bytes, bytes | None]]:
    """The ranges of all keys except those of these kinds."""
    ranges: list[tuple[bytes, bytes | None]] = []
    position = b""
    for start, end in sorted(keys.kind_range(kind) for kind in kinds):
        if start > position:
            ranges.append((position, start))
        position = end
    return [*ranges, (position, None)]
