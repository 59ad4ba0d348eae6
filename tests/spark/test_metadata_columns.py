"""Metadata as columns is what the decoder of one record says, for whatever records there are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kombu_opendata.errors import CorruptRecord
from kombu_opendata.spark.metadata_columns import HEADERS, Records
from kombu_opendata.storage.records import keys, metadata

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(["x" * 300, "7", "255", "²"])
NAMES = st.sampled_from([*HEADERS.values(), "lang", "ids", "t"]) | TEXTS
TIMES = st.integers(0, 2**41)
PAIRS = st.lists(st.tuples(NAMES, TEXTS), max_size=6)
RECORDS = st.tuples(TIMES, TIMES, TIMES, st.integers(0, 2**31), PAIRS)
WANTED = frozenset((*HEADERS, "headers"))


def rows_of(records: list[Any]) -> list[tuple[bytes, bytes]]:
    return [(keys.metadata_key(id), metadata.encode(id, *record)) for id, record in enumerate(records)]


@settings(max_examples=60, deadline=None)
@given(st.lists(RECORDS, min_size=1, max_size=8))
def test_columns_are_what_the_decoder_says(records: list[Any]) -> None:
    rows = rows_of(records)
    columns = {name: column.to_pylist() for name, column in Records(rows).columns(WANTED).items()}
    for row, (key, value) in enumerate(rows):
        found = metadata.decode(key, value)
        headers = found.headers
        assert columns["message_id"][row] == found.message_id
        assert columns["created_at"][row] == found.created_at_ms
        assert columns["received_at"][row] == found.received_at_ms
        assert columns["visible_at"][row] == (found.visible_at_ms or None)
        expires = found.received_at_ms + 1000 * found.retention_seconds if found.retention_seconds else None
        assert columns["expires_at"][row] == expires
        assert columns["headers"][row] == list(found.header_pairs)
        for name, header in HEADERS.items():
            text = headers.get(header)
            if name == "priority" and text is not None:
                assert columns[name][row] == (
                    int(text) if text.isascii() and text.isdecimal() and len(text) < 4 else None
                )
            else:
                assert columns[name][row] == text


@settings(max_examples=60, deadline=None)
@given(st.lists(RECORDS, min_size=1, max_size=4), st.data())
def test_damaged_records_are_refused_or_read_as_the_decoder_reads_them(records: list[Any], data: st.DataObject) -> None:
    rows = rows_of(records)
    at = data.draw(st.integers(0, len(rows) - 1))
    key, value = rows[at]
    where = data.draw(st.integers(0, len(value) - 1))
    kind = data.draw(st.sampled_from(["cut", "flip", "more"]))
    if kind == "cut":
        value = value[:where]
    elif kind == "more":
        value += b"\0"
    else:
        value = value[:where] + bytes((value[where] ^ data.draw(st.integers(1, 255)),)) + value[where + 1 :]
    rows[at] = (key, value)
    try:
        expected = metadata.decode(key, value)
    except CorruptRecord:
        with pytest.raises(CorruptRecord) as caught:
            Records(rows).columns(WANTED)
        assert caught.value.values["key"] == key
        return
    headers = Records(rows).columns(WANTED)["headers"].to_pylist()
    assert headers[at] == list(expected.header_pairs)


def test_no_records_and_no_headers() -> None:
    assert Records([]).columns(WANTED)["message_id"].to_pylist() == []
    assert Records(rows_of([(1, 2, 3, 4, [])])).columns(WANTED)["headers"].to_pylist() == [[]]
