"""Metadata records as Arrow columns, many at a time: numpy finds where each header is, Arrow gets the bytes.

The messages of a producer mostly have records of one layout, and then a header is at the same place in all of them.
Decoding record by record costs ten times as much as any others, and would be most of what reading messages does.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...storage.records import metadata, types
from ...storage.rows import Rows, Run
from .store_scan import Columns

#: of :mod:`kombu_opendata.storage.records.metadata`, whose docstring has the layout
_HEAD = np.dtype(
    [
        ("message_id", "<u8"),
        ("created", "<i8"),
        ("received", "<i8"),
        ("visible", "<i8"),
        ("retention", "<u4"),
        ("n", "u1"),
    ]
)
#: the length of a text
_COUNT = np.dtype("<u2")
#: columns of the table that are metadata headers, and those headers
HEADERS = {
    "task": "task",
    "task_id": "id",
    "exchange": "exchange",
    "routing_key": "routing_key",
    "priority": "priority",
    "content_type": "content_type",
}

_NUMBERS = ("message_id", "created_at", "received_at", "visible_at", "expires_at")
_TIME = pa.timestamp("us", "UTC")
#: runs of so many records are looked at by themselves
_MANY = 256

Numbers = Any  # a numpy array of int64, one for each record


def columns(rows: Rows, wanted: frozenset[str]) -> Columns:
    """Those columns of the table that come from metadata, of these records.

    Raises:
        CorruptRecord: one does not decode.
    """
    try:
        parts = [part.columns(wanted) for part in _parts(rows, "headers" not in wanted)]
    except _DamagedError:
        _refuse(rows)
    if len(parts) == 1:
        return parts[0]
    return {name: pa.concat_arrays([part[name] for part in parts]) for name in parts[0]}


def _parts(rows: Rows, may_be_alike: bool) -> Iterable[_Alike | _Mixed]:
    """The records, those apart that are alike; at least one part."""
    data = np.frombuffer(rows.data, np.uint8)
    others: list[Run] = []
    for run in rows.runs if may_be_alike else ():
        if run[-1] < _MANY or not (alike := _Alike(data, run)).is_whole:
            others.append(run)
            continue
        if others:
            yield _Mixed(data, others)
            others = []
        yield alike
    if others or not may_be_alike or not rows.runs:
        yield _Mixed(data, others if may_be_alike else rows.runs)


class _DamagedError(Exception):
    """Some record does not decode."""


def _refuse(rows: Rows) -> NoReturn:
    """Raise what the decoder says of the first record that is damaged."""
    pairs = rows.pairs()
    for key, value in pairs:
        metadata.decode(key, value)
    raise types.corrupt(pairs[0][0], 0, "a batch of records that does not decode")


class _Part(ABC):
    """Some of the records.

    Attributes:
        head: what they begin with.
    """

    head: Any

    def columns(self, wanted: frozenset[str]) -> Columns:
        columns: Columns = {name: self._number(name) for name in _NUMBERS if name in wanted}
        for name in wanted & HEADERS.keys():
            columns[name] = self.header(HEADERS[name].encode())
        if "priority" in columns:
            columns["priority"] = _priorities(columns["priority"])
        if "headers" in wanted:
            columns["headers"] = self.maps()
        return columns

    def _number(self, name: str) -> pa.Array:
        head = self.head
        match name:
            case "message_id":
                return pa.array(head["message_id"].astype(np.int64))
            case "created_at":
                return _times(head["created"])
            case "received_at":
                return _times(head["received"])
            case "visible_at":
                return _times(head["visible"], head["visible"] == 0)
            case _:
                retention = head["retention"].astype(np.int64)
                return _times(head["received"] + 1000 * retention, retention == 0)

    @abstractmethod
    def header(self, name: bytes) -> pa.Array:
        """One header of all records; of one that a record has twice, the last."""

    @abstractmethod
    def maps(self) -> pa.Array:
        """All headers of each record."""


def _times(ms: Any, missing: Any = None) -> pa.Array:
    return pc.multiply_checked(pa.array(np.ascontiguousarray(ms), mask=missing), 1000).view(_TIME)


def _priorities(texts: pa.Array) -> pa.Array:
    """Numbers of up to three digits; null for other texts."""
    different = texts.dictionary_encode()
    numbers = [
        int(text) if text and text.isascii() and text.isdecimal() and len(text) <= 3 else None
        for text in different.dictionary.to_pylist()
    ]
    return pa.array(numbers, pa.int32()).take(different.indices)


def _column(data: Any, offsets: Any) -> pa.Array:
    """Texts that end where the next one begins.

    Raises:
        _DamagedError: one is no UTF-8.
    """
    column = pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data))
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raise _DamagedError from None
    return column


# ---------------------------------------------------------------------- records that are alike
class _Alike(_Part):
    """Records of one length.

    Attributes:
        is_whole: whether they have the same headers, with values of the same lengths; of no use if not.
    """

    def __init__(self, data: Any, run: Run) -> None:
        self._data = data
        self._start, self._step, _key, self._length, self._rows = run
        self._values: dict[bytes, tuple[int, int]] = {}
        self.is_whole = self._length >= _HEAD.itemsize and self._read_first()
        if self.is_whole:
            self.head = np.ndarray((self._rows,), _HEAD, data, self._start, (self._step,))

    def _read_first(self) -> bool:
        """Find the headers of the first record, and see that they are the same in all: whether that is so."""
        length = self._length
        first = self._data[self._start : self._start + length].tobytes()
        fixed = _HEAD.itemsize - 1  # what is the same in all begins here: the number of headers, a name, …
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
        """These bytes of each record, one after the other."""
        if not length:
            return b""
        return np.ndarray((self._rows,), f"V{length}", self._data, self._start + at, (self._step,)).tobytes()

    def header(self, name: bytes) -> pa.Array:
        count = self._rows
        if name not in self._values:
            return pa.nulls(count, pa.string())
        at, length = self._values[name]
        return _column(self._cut(at, length), np.arange(count + 1) * length)

    def maps(self) -> pa.Array:
        raise NotImplementedError


# ---------------------------------------------------------------------- any records
class _Header(NamedTuple):
    """Where the first header of all records is, or the second, …; anything where ``present`` is False."""

    name: Numbers
    name_length: Numbers
    value: Numbers
    value_length: Numbers
    present: Any


class _Mixed(_Part):
    """Whatever records there are."""

    def __init__(self, data: Any, runs: Sequence[Run]) -> None:
        self._data = data
        self._starts, lengths = _places(runs)
        if lengths.min(initial=_HEAD.itemsize) < _HEAD.itemsize:
            raise _DamagedError
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
            raise _DamagedError

    def _text(self, at: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Start and length of the texts whose lengths are at these places, and where the next ones are.

        One beyond the end of its record is seen in the end, as places only ascend; here it must be one in the data.
        """
        at = np.minimum(at, len(self._data) - _COUNT.itemsize)
        length = self._windows(_COUNT)[at].astype(np.int64)
        start = at + _COUNT.itemsize
        return start, length, start + length

    def _windows(self, kind: Any) -> Any:
        """What is at each byte of the data, as a value of this type: windows that overlap."""
        kind = np.dtype(kind)
        size = len(self._data) - kind.itemsize + 1
        return np.ndarray((max(size, 0),), kind, self._data, strides=(1,))

    def _cut(self, starts: Numbers, length: int) -> Any:
        """So many bytes from each of these places, one after the other."""
        return self._windows(f"V{length}")[starts] if length else np.zeros(0, np.uint8)

    def header(self, name: bytes) -> pa.Array:
        rows = len(self._starts)
        start, length, found = np.zeros(rows, np.int64), np.zeros(rows, np.int64), np.zeros(rows, bool)
        for header in self._headers:
            candidates = np.flatnonzero(header.present & (header.name_length == len(name)))
            if not len(candidates):
                continue
            names = self._cut(header.name[candidates], len(name))
            if names.tobytes() == name * len(candidates):
                match = slice(None) if len(candidates) == rows else candidates
            else:
                match = candidates[(names.view(np.uint8).reshape(-1, len(name)) == list(name)).all(axis=1)]
            start[match], length[match], found[match] = header.value[match], header.value_length[match], True
        return self._texts(start, length, found)

    def _texts(self, start: Numbers, length: Numbers, found: Any) -> pa.Array:
        """The texts at these places as a column, null where none was found."""
        offsets = np.zeros(len(start) + 1, np.int64)
        np.cumsum(length, out=offsets[1:])
        longest = int(length.max(initial=0))
        if offsets[-1] == longest * len(start):
            data = self._cut(start, longest)
        else:
            data = self._data[np.repeat(start - offsets[:-1], length) + np.arange(offsets[-1])]
        column = _column(data, offsets)
        return column if found.all() else pc.if_else(pa.array(found), column, None)

    def maps(self) -> pa.Array:
        if not self._headers:
            empty = pa.array([], pa.string())
            return pa.MapArray.from_arrays(np.zeros(len(self._starts) + 1, np.int32), empty, empty)
        stacked = [np.stack(column, axis=1) for column in zip(*self._headers, strict=True)]
        present = stacked[4].reshape(-1)
        names, name_lengths, values, value_lengths = (one.reshape(-1)[present] for one in stacked[:4])
        offsets = np.zeros(len(self._starts) + 1, np.int32)
        np.cumsum(self.head["n"], out=offsets[1:])
        all_found = np.ones(len(names), bool)
        keys = self._texts(names, name_lengths, all_found)
        return pa.MapArray.from_arrays(offsets, keys, self._texts(values, value_lengths, all_found))


def _places(runs: Sequence[Run]) -> tuple[Numbers, Numbers]:
    """Where the values of these runs start, and their lengths."""
    table = np.fromiter(itertools.chain.from_iterable(runs), np.int64, 5 * len(runs)).reshape(-1, 5)
    start, step, _key, value, count = table.T
    before = np.cumsum(count) - count
    starts = np.repeat(start - step * before, count) + np.repeat(step, count) * np.arange(count.sum())
    return starts, np.repeat(value, count)
