"""Metadata records as Arrow columns, many at a time: numpy finds where each header is, Arrow gets the bytes.

Decoding record by record costs twelve times as much and would be most of what reading messages does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..storage.records import metadata, types
from .scan import Columns

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
#: columns of the table that are metadata headers, and those headers
HEADERS = {
    "task": "task",
    "task_id": "id",
    "exchange": "exchange",
    "routing_key": "routing_key",
    "priority": "priority",
    "content_type": "content_type",
}

Numbers = Any  # a numpy array of int64, one for each record


class Records:
    """The metadata records of some messages.

    Args:
        rows: keys and values.

    Raises:
        CorruptRecord: one does not decode.
    """

    def __init__(self, rows: list[tuple[bytes, bytes]]) -> None:
        self._rows = rows
        lengths = np.fromiter((len(value) for _key, value in rows), np.int64, len(rows))
        if lengths.min(initial=_HEAD.itemsize) < _HEAD.itemsize:
            self._refuse()
        ends = np.cumsum(lengths)
        # two more bytes, so that a length at the very end can be looked at before it is refused
        self._data = np.frombuffer(b"".join([*(value for _key, value in rows), b"\0\0"]), np.uint8)
        self._starts = ends - lengths
        self._ends = ends
        heads = self._data[self._starts[:, None] + np.arange(_HEAD.itemsize)]
        self._head = np.ascontiguousarray(heads).view(_HEAD).reshape(-1)
        self._pairs = list(self._find_pairs())

    def _find_pairs(self) -> Iterable[tuple[Numbers, Numbers, Numbers, Numbers, Any]]:
        """For the first header of all records, then the second, …: where name and value are, and which have it."""
        counts = self._head["n"]
        at = self._starts + _HEAD.itemsize
        for number in range(int(counts.max(initial=0))):
            present = counts > number
            name, name_length, after = self._text(at, present)
            value, value_length, after = self._text(after, present)
            yield name, name_length, value, value_length, present
            at = np.where(present, after, at)
        if not np.array_equal(at, self._ends):
            self._refuse()

    def _text(self, at: Numbers, present: Any) -> tuple[Numbers, Numbers, Numbers]:
        """Start and length of the texts whose lengths are at these places, and where the next ones are."""
        if np.any(present & (at + 2 > self._ends)):
            self._refuse()
        at = np.where(present, at, 0)
        length = self._data[at].astype(np.int64) | self._data[at + 1].astype(np.int64) << 8
        start = at + 2
        if np.any(present & (start + length > self._ends)):
            self._refuse()
        return start, np.where(present, length, 0), start + length

    def _refuse(self) -> NoReturn:
        """Raise what the decoder says of the first record that is damaged."""
        for key, value in self._rows:
            metadata.decode(key, value)
        raise types.corrupt(self._rows[0][0], 0, "a batch of records that does not decode")

    # ---- columns
    def columns(self, wanted: frozenset[str]) -> Columns:
        """The columns of the table that come from metadata; times are ms since the epoch."""
        head = self._head
        retention = head["retention"].astype(np.int64)
        columns: Columns = {
            "message_id": pa.array(head["message_id"].astype(np.int64)),
            "created_at": pa.array(head["created"]),
            "received_at": pa.array(head["received"]),
            "visible_at": pa.array(head["visible"], mask=head["visible"] == 0),
            "expires_at": pa.array(head["received"] + 1000 * retention, mask=retention == 0),
        }
        for name in wanted & HEADERS.keys():
            columns[name] = self._header(HEADERS[name].encode())
        if "priority" in columns:
            text = columns["priority"]
            is_number = pc.and_(pc.ascii_is_decimal(text), pc.less_equal(pc.binary_length(text), 3))
            columns["priority"] = pc.cast(pc.if_else(is_number, text, None), pa.int32())
        if "headers" in wanted:
            columns["headers"] = self._maps()
        return columns

    def _header(self, name: bytes) -> pa.Array:
        """One header of all records; of one that a record has twice, the last."""
        rows = len(self._rows)
        start, length, found = np.zeros(rows, np.int64), np.zeros(rows, np.int64), np.zeros(rows, bool)
        wanted = np.frombuffer(name, np.uint8)
        for name_start, name_length, value_start, value_length, present in self._pairs:
            candidates = np.flatnonzero(present & (name_length == len(name)))
            if not len(candidates):
                continue
            names = self._data[name_start[candidates][:, None] + np.arange(len(name))]
            match = candidates[(names == wanted).all(axis=1)]
            start[match], length[match], found[match] = value_start[match], value_length[match], True
        return self._texts(start, length, found)

    def _texts(self, start: Numbers, length: Numbers, found: Any) -> pa.Array:
        offsets = np.zeros(len(start) + 1, np.int64)
        np.cumsum(length, out=offsets[1:])
        places = np.repeat(start - offsets[:-1], length) + np.arange(offsets[-1])
        data = self._data[places]
        buffers = (pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data)))
        column = pa.StringArray.from_buffers(len(start), *buffers)
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            self._refuse()
        return column if found.all() else pc.if_else(pa.array(found), column, None)

    def _maps(self) -> pa.Array:
        """All headers of each record."""
        if not self._pairs:
            empty = pa.array([], pa.string())
            return pa.MapArray.from_arrays(np.zeros(len(self._rows) + 1, np.int32), empty, empty)
        stacked = [np.stack(column, axis=1) for column in zip(*self._pairs, strict=True)]
        present = stacked[4].reshape(-1)
        names, name_lengths, values, value_lengths = (one.reshape(-1)[present] for one in stacked[:4])
        offsets = np.zeros(len(self._rows) + 1, np.int32)
        np.cumsum(self._head["n"], out=offsets[1:])
        all_found = np.ones(len(names), bool)
        keys = self._texts(names, name_lengths, all_found)
        return pa.MapArray.from_arrays(offsets, keys, self._texts(values, value_lengths, all_found))
