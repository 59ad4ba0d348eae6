"""Metadata as columns is what the decoder of one record says, for whatever records there are."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kombu_opendata.errors import CorruptRecord
from kombu_opendata.spark.read import metadata_columns
from kombu_opendata.spark.read.metadata_columns import HEADERS
from kombu_opendata.storage.records import keys, metadata
from kombu_opendata.storage.slatedb.rows import Pair, Rows

from ...support.rows import in_one_piece

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(["x" * 300, "7", "255", "²"])
NAMES = st.sampled_from([*HEADERS.values(), "lang", "ids", "t"]) | TEXTS
TIMES = st.integers(0, 2**41)
PAIRS = st.lists(st.tuples(NAMES, TEXTS), max_size=6)
RECORDS = st.tuples(TIMES, TIMES, TIMES, st.integers(0, 2**31), PAIRS)
NUMBERS = ("message_id", "created_at", "received_at", "visible_at", "expires_at")
WANTED = frozenset((*NUMBERS, *HEADERS))
WITH_MAPS = WANTED | {"headers"}
#: a record, and how often one like it follows
RECORDS_ALIKE = st.tuples(RECORDS, st.integers(0, 4))


def pairs_of(records: list[Any]) -> list[Pair]:
    return [(keys.metadata_key(id), metadata.encode(id, *record)) for id, record in enumerate(records)]


def alike(records: list[Any]) -> list[Any]:
    """Each record, and as many as it says with other values of the same lengths."""
    found = []
    for (created, received, visible, retention, pairs), more in records:
        for number in range(more + 1):
            turned = [(name, text[::-1] if number % 2 else text) for name, text in pairs]
            found.append((created + number, received + number, visible * (number % 3), retention, turned))
    return found


def values_of(rows: Rows, wanted: frozenset[str]) -> dict[str, list[Any]]:
    """The columns; times as ms."""
    columns = metadata_columns.columns(rows, wanted)
    assert columns.keys() == wanted
    for name in wanted & set(NUMBERS[1:]):
        columns[name] = pc.divide(columns[name].cast(pa.int64()), 1000)
    return {name: column.to_pylist() for name, column in columns.items()}


def check(columns: dict[str, list[Any]], pairs: list[Pair]) -> None:
    for row, (key, value) in enumerate(pairs):
        found = metadata.decode(key, value)
        headers = found.headers
        assert columns["message_id"][row] == found.message_id
        assert columns["created_at"][row] == found.created_at_ms
        assert columns["received_at"][row] == found.received_at_ms
        assert columns["visible_at"][row] == (found.visible_at_ms or None)
        expires = found.received_at_ms + 1000 * found.retention_seconds if found.retention_seconds else None
        assert columns["expires_at"][row] == expires
        for name, header in HEADERS.items():
            text = headers.get(header)
            if name == "priority" and text is not None:
                assert columns[name][row] == (
                    int(text) if text.isascii() and text.isdecimal() and len(text) < 4 else None
                )
            else:
                assert columns[name][row] == text
        if "headers" in columns:
            assert columns["headers"][row] == list(found.header_pairs)


@pytest.mark.parametrize("packed", [Rows.of, in_one_piece])
@pytest.mark.parametrize("wanted", [WANTED, WITH_MAPS])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(RECORDS_ALIKE, min_size=1, max_size=8))
def test_columns_are_what_the_decoder_says(packed: Any, wanted: frozenset[str], records: list[Any]) -> None:
    pairs = pairs_of(alike(records))
    check(values_of(packed(pairs), wanted), pairs)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(RECORDS_ALIKE, min_size=1, max_size=4), st.data())
def test_damaged_records_are_refused_or_read_as_the_decoder_reads_them(records: list[Any], data: st.DataObject) -> None:
    pairs = pairs_of(alike(records))
    at = data.draw(st.integers(0, len(pairs) - 1))
    key, value = pairs[at]
    where = data.draw(st.integers(0, len(value) - 1))
    kind = data.draw(st.sampled_from(["cut", "flip", "more"]))
    if kind == "cut":
        value = value[:where]
    elif kind == "more":
        value += b"\0"
    else:
        value = value[:where] + bytes((value[where] ^ data.draw(st.integers(1, 255)),)) + value[where + 1 :]
    pairs[at] = (key, value)
    refused: CorruptRecord | None = None
    try:
        expected = metadata.decode(key, value).header_pairs
    except CorruptRecord as exc:
        refused = exc
    for packed in (Rows.of, in_one_piece):
        if refused is None:
            assert values_of(packed(pairs), frozenset(("headers",)))["headers"][at] == list(expected)
            continue
        with pytest.raises(CorruptRecord) as caught:
            metadata_columns.columns(packed(pairs), WITH_MAPS)
        assert str(caught.value) == str(refused)
        assert caught.value.values["key"] == key


@pytest.mark.parametrize("packed", [Rows.of, in_one_piece])
@pytest.mark.parametrize("damage", [b"\xff", b"\xc3"])
def test_the_first_of_damaged_records_is_named_wherever_the_next_is(packed: Any, damage: bytes) -> None:
    pairs = pairs_of([(1, 2, 3, 4, [("task", "name"), ("id", "x" * (50 if id > 12 else 5))]) for id in range(20)])
    for at in (9, 15, 16):
        pairs[at] = (pairs[at][0], pairs[at][1].replace(b"name", b"nam" + damage))
    with pytest.raises(CorruptRecord) as caught:
        metadata_columns.columns(packed(pairs), WANTED)
    assert caught.value.values["key"] == pairs[9][0]


def test_records_of_very_different_layouts_stay_in_order() -> None:
    like = [("task", "proj.task"), ("id", "0123"), ("priority", "7"), ("task", "proj.last")]
    records: list[Any] = [
        *[(1, 2, 3, 4, like)] * 5,
        (1, 2, 3, 4, []),
        *[(1, 2, 0, 0, [("id", "")])] * 3,
        (1, 2, 3, 4, [(name, text) for name, text in reversed(like)]),
        *[(1, 2, 3, 4, like)] * 2,
        (5, 6, 7, 8, [(f"h{number}", "é" * number) for number in range(255)]),
    ]
    pairs = pairs_of(records)
    rows = in_one_piece(pairs)
    assert [run[-1] for run in rows.runs] == [5, 1, 3, 3, 1]
    columns = values_of(rows, WANTED)
    check(columns, pairs)
    assert columns["task"][:6] == ["proj.last"] * 5 + [None]
    assert columns["priority"][:6] == [7] * 5 + [None]
    check(values_of(rows, WITH_MAPS), pairs)


@pytest.mark.parametrize("wanted", [WANTED, WITH_MAPS])
def test_no_records_and_no_headers(wanted: frozenset[str]) -> None:
    assert values_of(Rows.of([]), wanted)["message_id"] == []
    for count in (1, 3):
        pairs = pairs_of([(1, 2, 3, 4, [])] * count)
        check(values_of(in_one_piece(pairs), wanted), pairs)


def test_only_wanted_columns_are_made() -> None:
    rows = in_one_piece(pairs_of([(1, 2, 3, 4, [])] * 3))
    assert metadata_columns.columns(rows, frozenset(("task",))).keys() == {"task"}


def test_times_that_spark_has_no_value_for_are_refused() -> None:
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        metadata_columns.columns(in_one_piece(pairs_of([(2**62, 2, 3, 4, [])] * 3)), frozenset(("created_at",)))
