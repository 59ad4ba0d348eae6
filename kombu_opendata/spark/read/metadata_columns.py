"""Columns of the table ``messages`` from metadata, decoded for many records in one step.

Most messages of a producer have metadata of one layout, so numpy reads a header at the same offset in all of them.
Decoding record by record takes ten times as long, and would dominate the time of reading messages.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...storage.records import field_types, metadata
from ...storage.slatedb.rows import Rows, Run
from .store_scan import Columns

#: runs of fewer records are decoded together with other runs
_MANY = 256


def columns(rows: Rows, wanted: frozenset[str], *, min_run: int = _MANY) -> Columns:
    """Return the wanted columns derived from metadata; raise CorruptRecord if a record does not decode."""
    try:
        parts = [part.columns(wanted) for part in _parts(rows, "headers" not in wanted, min_run)]
    except DamagedError:
        _refuse(rows)
    if len(parts) == 1:
        return parts[0]
    return {name: pa.concat_arrays([part[name] for part in parts]) for name in parts[0]}


def _parts(rows: Rows, may_be_uniform: bool, min_run: int) -> Iterable[UniformRecords | MixedRecords]:
    """Yield the records in parts, at least one; long runs of one layout are separate parts."""
    data = np.frombuffer(rows.data, np.uint8)
    others: list[Run] = []
    for run in rows.runs if may_be_uniform else ():
        if run[-1] < min_run or not (uniform := UniformRecords(data, run)).has_one_layout:
            others.append(run)
            continue
        if others:
            yield MixedRecords(data, others)
            others = []
        yield uniform
    if others or not may_be_uniform or not rows.runs:
        yield MixedRecords(data, others if may_be_uniform else rows.runs)


def _refuse(rows: Rows) -> NoReturn:
    """Raise the decoder's error for the first damaged record."""
    pairs = rows.pairs()
    for key, value in pairs:
        metadata.decode(key, value)
    raise field_types.corrupt(pairs[0][0], 0, "a batch of records that does not decode")


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


class Records(ABC):
    """Metadata records."""

    head: Any  # the fixed part of each record

    def columns(self, wanted: frozenset[str]) -> Columns:
        """Return the wanted columns of the table that are derived from metadata."""
        columns: Columns = {name: self._number(name) for name in _NUMBERS if name in wanted}
        for name in wanted & HEADERS.keys():
            columns[name] = self.header(HEADERS[name].encode())
        if "priority" in columns:
            columns["priority"] = _priorities(columns["priority"])
        return columns

    def _number(self, name: str) -> pa.Array:
        head = self.head
        if name == "message_id":
            return pa.array(head[name].astype(np.int64))
        if name == "visible_at":
            return _times(head[name], head[name] == 0)
        if name == "expires_at":
            retention = head["retention"].astype(np.int64)
            return _times(head["received_at"] + 1000 * retention, retention == 0)
        return _times(head[name])

    @abstractmethod
    def header(self, name: bytes) -> pa.Array:
        """Return a header of all records; if a record has it twice, the last value."""


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


def _column(data: Any, offsets: Any) -> pa.Array:
    """Return contiguous texts as a column; raise DamagedError if a text is not UTF-8."""
    column = pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data))
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raise DamagedError from None
    return column


# ---------------------------------------------------------------------- records of one layout
class UniformRecords(Records):
    """Records of one length, which may have one layout."""

    def __init__(self, data: Any, run: Run) -> None:
        self._data = data
        self._start, self._step, _key, self._length, self._rows = run
        self._values: dict[bytes, tuple[int, int]] = {}
        #: True if all have the same headers, with values of the same lengths; required for all methods
        self.has_one_layout = self._length >= _HEAD.itemsize and self._read_first()
        if self.has_one_layout:
            self.head = np.ndarray((self._rows,), _HEAD, data, self._start, (self._step,))

    def _read_first(self) -> bool:
        """Locate the headers of the first record; return True if all records have the same."""
        length = self._length
        first = self._data[self._start : self._start + length].tobytes()
        fixed = _HEAD.itemsize - 1  # start of bytes that must be equal: the number of headers, lengths and names
        at = fixed + 1
        for _ in range(first[fixed]):
            name = at + _COUNT.itemsize
            value = name + int.from_bytes(first[at:name], "little") + _COUNT.itemsize
            at = value + int.from_bytes(first[value - _COUNT.itemsize : value], "little")
            if at > length or not self._is_same(fixed, first[fixed:value]):
                return False
            self._values[first[name : value - _COUNT.itemsize]] = value, at - value
            fixed = at
        return at == length and (bool(self._values) or self._is_same(fixed, first[fixed:at]))

    def _is_same(self, at: int, expected: bytes) -> bool:
        return self._cut(at, len(expected)) == expected * self._rows

    def _cut(self, at: int, length: int) -> bytes:
        """Return these bytes of each record, joined."""
        if not length:
            return b""
        return np.ndarray((self._rows,), f"V{length}", self._data, self._start + at, (self._step,)).tobytes()

    def header(self, name: bytes) -> pa.Array:
        count = self._rows
        if name not in self._values:
            return pa.nulls(count, pa.string())
        at, length = self._values[name]
        return _column(self._cut(at, length), np.arange(count + 1) * length)


# ---------------------------------------------------------------------- any records
class _Header(NamedTuple):
    """Location of the n-th header of each record; undefined for records where ``present`` is False."""

    name: Numbers
    name_length: Numbers
    value: Numbers
    value_length: Numbers
    present: Any


class MixedRecords(Records):
    """Records of any layouts."""

    def __init__(self, data: Any, runs: Sequence[Run]) -> None:
        self._data = data
        self._starts, lengths = _places(runs)
        if lengths.min(initial=_HEAD.itemsize) < _HEAD.itemsize:
            raise DamagedError
        self._ends = self._starts + lengths
        self.head = self._cut(self._starts, _HEAD.itemsize).view(_HEAD)
        self._headers = list(self._find_headers())

    def _find_headers(self) -> Iterable[_Header]:
        counts = self.head["n"]
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

    def header(self, name: bytes) -> pa.Array:
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
        """Return the texts at these offsets as a column; null where ``is_present`` is False."""
        offsets = np.zeros(len(start) + 1, np.int64)
        np.cumsum(length, out=offsets[1:])
        longest = int(length.max(initial=0))
        if offsets[-1] == longest * len(start):
            data = self._cut(start, longest)
        else:
            data = self._data[np.repeat(start - offsets[:-1], length) + np.arange(offsets[-1])]
        column = _column(data, offsets)
        return column if is_present.all() else pc.if_else(pa.array(is_present), column, None)

    def columns(self, wanted: frozenset[str]) -> Columns:
        columns = super().columns(wanted)
        if "headers" in wanted:
            columns["headers"] = self._maps()
        return columns

    def _maps(self) -> pa.Array:
        if not self._headers:
            empty = pa.array([], pa.string())
            return pa.MapArray.from_arrays(np.zeros(len(self._starts) + 1, np.int32), empty, empty)
        stacked = [np.stack(column, axis=1) for column in zip(*self._headers, strict=True)]
        present = stacked[4].reshape(-1)
        names, name_lengths, values, value_lengths = (part.reshape(-1)[present] for part in stacked[:4])
        offsets = np.zeros(len(self._starts) + 1, np.int32)
        np.cumsum(self.head["n"], out=offsets[1:])
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
