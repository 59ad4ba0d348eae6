"""Columns of the table ``messages`` from metadata, decoded for many records in one step.

Most messages of a producer have metadata of one layout, so numpy reads a header at the same offset in all of them.
Decoding record by record takes ten times as long, and would dominate the time of reading messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

import numpy as np
import pyarrow as pa

from ...storage.records import metadata, types
from ...storage.slatedb.rows import Rows, Run
from .metadata_records import DamagedError, MixedRecords, UniformRecords
from .store_scan import Columns

#: runs of fewer records are decoded together with others
_MANY = 256


def columns(rows: Rows, wanted: frozenset[str]) -> Columns:
    """Return the wanted columns of these records that are derived from metadata.

    Raises:
        CorruptRecord: a record does not decode.
    """
    try:
        parts = [part.columns(wanted) for part in _parts(rows, "headers" not in wanted)]
    except DamagedError:
        _refuse(rows)
    if len(parts) == 1:
        return parts[0]
    return {name: pa.concat_arrays([part[name] for part in parts]) for name in parts[0]}


def _parts(rows: Rows, may_be_uniform: bool) -> Iterable[UniformRecords | MixedRecords]:
    """Yield the records in parts, at least one; long runs of one layout are separate parts."""
    data = np.frombuffer(rows.data, np.uint8)
    others: list[Run] = []
    for run in rows.runs if may_be_uniform else ():
        if run[-1] < _MANY or not (uniform := UniformRecords(data, run)).has_one_layout:
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
    raise types.corrupt(pairs[0][0], 0, "a batch of records that does not decode")
