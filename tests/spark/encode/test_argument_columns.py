"""Columns as JSON, as reprs and in msgpack: what Arrow puts together is what Python would have written."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
import pyarrow as pa
from celery.utils.saferepr import saferepr
from hypothesis import given, settings
from hypothesis import strategies as st
from kombu.utils.json import dumps

from kombu_opendata.celery_integration.serializer import dumps as compact_dumps
from kombu_opendata.spark.encode import arrow_text
from kombu_opendata.spark.encode.argument_columns import Argument, Arguments, Column, Constant, values

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
COLUMNS = st.one_of(
    st.lists(st.none() | TEXTS, min_size=1).map(lambda found: pa.array(found, pa.string())),
    st.lists(st.none() | TEXTS, min_size=1).map(lambda found: pa.array(found, pa.large_string())),
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=1).map(lambda found: pa.array(found, pa.int64())),
    st.lists(st.none() | st.floats(), min_size=1).map(lambda found: pa.array(found, pa.float64())),
    st.lists(st.none() | st.floats(width=32), min_size=1).map(lambda found: pa.array(found, pa.float32())),
    st.lists(st.none() | st.booleans(), min_size=1).map(lambda found: pa.array(found, pa.bool_())),
    st.lists(st.none() | st.binary(max_size=20), min_size=1).map(lambda found: pa.array(found, pa.binary())),
    st.lists(st.none() | st.dates(), min_size=1).map(lambda found: pa.array(found, pa.date32())),
    st.lists(st.none() | st.datetimes(timezones=st.just(dt.UTC)), min_size=1).map(
        lambda found: pa.array(found, pa.timestamp("us", "UTC"))
    ),
    st.lists(st.none() | st.lists(st.none() | TEXTS), min_size=1).map(
        lambda found: pa.array(found, pa.list_(pa.string()))
    ),
    st.lists(st.none() | st.dictionaries(TEXTS, st.integers(0, 9)), min_size=1).map(
        lambda found: pa.array(
            [None if one is None else list(one.items()) for one in found], pa.map_(pa.string(), pa.int64())
        )
    ),
)

CONSTANTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
).map(Constant)
ARGUMENTS = st.lists(COLUMNS | CONSTANTS, max_size=3)


@settings(max_examples=60)
@given(COLUMNS, st.integers(0, 3))
def test_columns_as_json(column: pa.Array, offset: int) -> None:
    column = column.slice(min(offset, len(column) - 1))
    assert Column(column).json(dumps).to_pylist() == [dumps(value) for value in values(column)]
    assert Column(column).compact(compact_dumps).to_pylist() == [compact_dumps(v).decode() for v in values(column)]


@settings(max_examples=60)
@given(ARGUMENTS, ARGUMENTS, st.integers(0, 60))
def test_reprs_are_celerys(args: list[Any], kwargs: list[Any], limit: int) -> None:
    rows = min((len(each) for each in (*args, *kwargs) if isinstance(each, pa.Array)), default=2)

    def argument(given: Any) -> Argument:
        return Column(given.slice(0, rows)) if isinstance(given, pa.Array) else given

    named = {f"it's {at}": argument(each) for at, each in enumerate(kwargs)}
    arguments = Arguments(list(map(argument, args)), named, rows)
    for bound in (1024, limit):
        found = zip(
            arguments.args_reprs(bound, 3).to_pylist(), arguments.kwargs_reprs(bound, 3).to_pylist(), strict=True
        )
        for row, (first, second) in enumerate(found):
            assert first == saferepr(arguments.args_of(row), bound, 3)
            assert second == saferepr(arguments.kwargs_of(row), bound, 3)


@settings(max_examples=40)
@given(st.lists(TEXTS, min_size=1), st.sampled_from([0, 31, 32, 255, 256, 65_535, 65_536, 70_000]))
def test_texts_and_binaries_in_msgpack(found: list[str], length: int) -> None:
    found = [*found, "x" * length]
    packed: list[Any] = arrow_text.packed_texts(pa.array(found)).to_pylist()
    assert packed == [msgspec.msgpack.encode(text) for text in found]
    raw = [text.encode() for text in found]
    assert arrow_text.packed_bytes(pa.array(raw)).to_pylist() == [msgspec.msgpack.encode(one) for one in raw]


def test_an_empty_column_and_one_of_nulls() -> None:
    for kind in (pa.string(), pa.int64(), pa.float64(), pa.null(), pa.list_(pa.int64())):
        assert Column(pa.array([], kind)).json(dumps).to_pylist() == []
        assert Column(pa.array([None], kind)).json(dumps).to_pylist() == ["null"]
        assert Column(pa.array([None], kind)).shown(repr).to_pylist() == ["None"]
