"""Columns of the table ``messages`` from metadata, decoded for many records in one step.

In one step, numpy locates the n-th header of all records, at offsets that may differ from record to record. Decoding
record by record takes ten times as long, and would dominate the time of reading messages.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...storage.records import field_types, metadata
from ...storage.slatedb.rows import Rows, Run
from .store_scan import Columns


def columns(rows: Rows, wanted: frozenset[str]) -> Columns:
    """Return the wanted columns derived from metadata; raise CorruptRecord if a record does not decode."""
    try:
        return _Records(np.frombuffer(rows.data, np.uint8), rows.runs).columns(wanted)
    except DamagedError:
        pairs = rows.pairs()
        for key, value in pairs:
            metadata.decode(key, value)  # raises the error of the first damaged record
        raise field_types.corrupt(pairs[0][0], 0, "a batch of records that does not decode") from None


#: first fields of a record; :mod:`kombu_opendata.storage.records.metadata` describes the layout
_HEAD = np.dtype([
    ("message_id", "<u8"), ("created_at", "<i8"), ("received_at", "<i8"), ("visible_at", "<i8"),
    ("retention", "<u4"), ("n", "u1"),
])  # fmt: skip
#: length that precedes a text
_COUNT = np.dtype("<u2")
#: columns of the table that are metadata headers, and the names of these headers
HEADERS = {name: name for name in ("task", "exchange", "routing_key", "priority", "content_type")} | {"task_id": "id"}


_NUMBERS = ("message_id", "created_at", "received_at", "visible_at", "expires_at")
_TIME = pa.timestamp("us", "UTC")

#: a numpy array of int64, one for each record
Numbers = Any


class DamagedError(Exception):
    """Record that does not decode."""


def _times(ms: Any, missing: Any = None) -> pa.Array:
    return pc.multiply_checked(pa.array(np.ascontiguousarray(ms), mask=missing), 1000).view(_TIME)


def _priorities(texts: pa.Array) -> pa.Array:
    """Return the numbers in texts of up to three digits; null for other texts."""
    different = texts.dictionary_encode()
    numbers = [
        int(text) if text and text.isascii() and text.isdecimal() and len(text) <= 3 else None
        for text in different.dictionary.to_pylist()
    ]
    return pa.array(numbers, pa.int32()).take(different.indices)


class _Header(NamedTuple):
    """Location of the n-th header of each record; undefined for records where ``present`` is False."""

    name: Numbers
    name_length: Numbers
    value: Numbers
    value_length: Numbers
    present: Any


class _Records:
    """Metadata records, of any layouts."""

    def __init__(self, data: Any, runs: Sequence[Run]) -> None:
        self._data = data
        self._starts, lengths = _places(runs)
        if lengths.min(initial=_HEAD.itemsize) < _HEAD.itemsize:
            raise DamagedError
        self._ends = self._starts + lengths
        self._head = self._cut(self._starts, _HEAD.itemsize).view(_HEAD)
        self._headers = list(self._find_headers())

    def columns(self, wanted: frozenset[str]) -> Columns:
        """Return the wanted columns of the table that are derived from metadata."""
        columns: Columns = {name: self._number(name) for name in _NUMBERS if name in wanted}
        for name in wanted & HEADERS.keys():
            columns[name] = self._header(HEADERS[name].encode())
        if "priority" in columns:
            columns["priority"] = _priorities(columns["priority"])
        if "headers" in wanted:
            columns["headers"] = self._maps()
        return columns

    def _number(self, name: str) -> pa.Array:
        head = self._head
        if name == "message_id":
            return pa.array(head[name].astype(np.int64))
        if name == "visible_at":
            return _times(head[name], head[name] == 0)
        if name == "expires_at":
            retention = head["retention"].astype(np.int64)
            return _times(head["received_at"] + 1000 * retention, retention == 0)
        return _times(head[name])

    def _find_headers(self) -> Iterable[_Header]:
        counts = self._head["n"]
        fewest, most = int(counts.min(initial=255)), int(counts.max(initial=0))
        at = self._starts + _HEAD.itemsize
        for number in range(most):
            name, name_length, after = self._text(at)
            value, value_length, after = self._text(after)
            present = counts > number
            yield _Header(name, name_length, value, value_length, present)
            at = after if number < fewest else np.where(present, after, at)
        if not np.array_equal(at, self._ends):
            raise DamagedError

    def _text(self, at: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Return start and length of the texts whose lengths are at these offsets, and the offsets after them.

        An offset may be beyond its record, but not beyond the data: offsets only ascend, so the end of the record is
        checked after the last text.
        """
        at = np.minimum(at, len(self._data) - _COUNT.itemsize)
        length = self._windows(_COUNT)[at].astype(np.int64)
        start = at + _COUNT.itemsize
        return start, length, start + length

    def _windows(self, kind: Any) -> Any:
        """Return a value of this type at each byte of the data, so that the values overlap."""
        kind = np.dtype(kind)
        size = len(self._data) - kind.itemsize + 1
        return np.ndarray((max(size, 0),), kind, self._data, strides=(1,))

    def _cut(self, starts: Numbers, length: int) -> Any:
        """Return ``length`` bytes from each of these offsets, joined."""
        return self._windows(f"V{length}")[starts] if length else np.zeros(0, np.uint8)

    def _header(self, name: bytes) -> pa.Array:
        """Return a header of all records; if a record has it twice, the last value."""
        rows = len(self._starts)
        start, length, is_present = np.zeros(rows, np.int64), np.zeros(rows, np.int64), np.zeros(rows, bool)
        for header in self._headers:
            candidates = np.flatnonzero(header.present & (header.name_length == len(name)))
            if not len(candidates):
                continue
            names = self._cut(header.name[candidates], len(name))
            if names.tobytes() == name * len(candidates):
                match = slice(None) if len(candidates) == rows else candidates
            else:
                match = candidates[(names.view(np.uint8).reshape(-1, len(name)) == list(name)).all(axis=1)]
            start[match], length[match], is_present[match] = header.value[match], header.value_length[match], True
        return self._texts(start, length, is_present)

    def _texts(self, start: Numbers, length: Numbers, is_present: Any) -> pa.Array:
        """Return the texts at these offsets as a column; null where ``is_present`` is False.

        Raises DamagedError if a text is not UTF-8.
        """
        offsets = np.zeros(len(start) + 1, np.int64)
        np.cumsum(length, out=offsets[1:])
        longest = int(length.max(initial=0))
        if offsets[-1] == longest * len(start):
            data = self._cut(start, longest)
        else:
            data = self._data[np.repeat(start - offsets[:-1], length) + np.arange(offsets[-1])]
        buffers = pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)
        column = pa.StringArray.from_buffers(len(start), *buffers)
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            raise DamagedError from None
        return column if is_present.all() else pc.if_else(pa.array(is_present), column, None)

    def _maps(self) -> pa.Array:
        if not self._headers:
            empty = pa.array([], pa.string())
            return pa.MapArray.from_arrays(np.zeros(len(self._starts) + 1, np.int32), empty, empty)
        stacked = [np.stack(column, axis=1) for column in zip(*self._headers, strict=True)]
        present = stacked[4].reshape(-1)
        names, name_lengths, values, value_lengths = (part.reshape(-1)[present] for part in stacked[:4])
        offsets = np.zeros(len(self._starts) + 1, np.int32)
        np.cumsum(self._head["n"], out=offsets[1:])
        all_found = np.ones(len(names), bool)
        keys = self._texts(names, name_lengths, all_found)
        return pa.MapArray.from_arrays(offsets, keys, self._texts(values, value_lengths, all_found))


def _places(runs: Sequence[Run]) -> tuple[Numbers, Numbers]:
    """Return the starts and the lengths of the records of these runs."""
    table = np.fromiter(itertools.chain.from_iterable(runs), np.int64, 5 * len(runs)).reshape(-1, 5)
    start, step, _key, value, count = table.T
    before = np.cumsum(count) - count
    starts = np.repeat(start - step * before, count) + np.repeat(step, count) * np.arange(count.sum())
    return starts, np.repeat(value, count)
