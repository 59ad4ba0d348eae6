"""Arrow columns as arguments of tasks: as Python values, as the text a serializer makes of them, as Celery shows them.

What each Spark type becomes is the table of docs/spark.md. A column is turned as a whole, which costs a tenth of
doing it row by row; the results are those of ``json.dumps``, the ``msgspec`` serializer and Celery's ``saferepr``.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable
from decimal import Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .arrow_text import content, is_plain, strings

Convert = Callable[[Any], Any]

#: the JSON text of a str, as ``json.dumps`` with its defaults makes it
json_quote: Callable[[str], str] = json.encoder.encode_basestring_ascii


# ---- Python values
def values(array: pa.Array) -> list[Any]:
    """The column's values as Python objects; times with a zone are aware and in UTC."""
    found: list[Any] = array.to_pylist()
    convert = converter(array.type)
    return found if convert is None else [None if value is None else convert(value) for value in found]


def converter(kind: pa.DataType) -> Convert | None:
    """What pyarrow's Python objects of this type still need; None where they are right as they are."""
    if pa.types.is_timestamp(kind):
        return None if kind.tz is None else _to_utc
    if pa.types.is_map(kind):
        return _map_converter(_each(kind.key_type), _each(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = converter(kind.value_type)
        return None if inner is None else _list_converter(_each(kind.value_type))
    if pa.types.is_struct(kind):
        fields = {field.name: _each(field.type) for field in kind if converter(field.type) is not None}
        return _struct_converter(fields) if fields else None
    return None


def _each(kind: pa.DataType) -> Convert:
    convert = converter(kind)
    return _same if convert is None else lambda value: None if value is None else convert(value)


def _same(value: Any) -> Any:
    return value


def _to_utc(value: dt.datetime) -> dt.datetime:
    return value.astimezone(dt.UTC)


def _map_converter(key: Convert, item: Convert) -> Convert:
    return lambda pairs: {key(k): item(v) for k, v in pairs}


def _list_converter(item: Convert) -> Convert:
    return lambda items: [item(one) for one in items]


def _struct_converter(fields: dict[str, Convert]) -> Convert:
    return lambda value: {**value, **{name: convert(value[name]) for name, convert in fields.items()}}


# ---- one column
class Column:
    """A column of arguments.

    Args:
        array: its values.
    """

    def __init__(self, array: pa.Array) -> None:
        self.array = pc.cast(array, pa.string()) if pa.types.is_large_string(array.type) else array
        self.kind = self.array.type

    @cached_property
    def values(self) -> list[Any]:
        """As Python objects."""
        return values(self.array)

    def value(self, row: int) -> Any:
        """One of them."""
        return self.values[row]

    def json(self, dumps: Callable[[Any], str]) -> pa.Array:
        """Each value's JSON, as ``json.dumps`` writes it with its defaults; ``dumps`` is for what has no short cut."""
        if pa.types.is_string(self.kind):
            if self._is_plain:
                return _quoted(b'"', self.array, "null")
            return strings(["null" if value is None else json_quote(value) for value in self.values])
        if pa.types.is_floating(self.kind):
            return self._floats if self._are_finite else strings(list(map(_json_float, self.values)))
        return self._simple("null", dumps)

    def compact(self, dumps: Callable[[Any], bytes]) -> pa.Array:
        """Each value's JSON as the ``msgspec`` serializer writes it."""
        if pa.types.is_string(self.kind) and self._is_plain:
            return _quoted(b'"', self.array, "null")
        return self._simple("null", lambda value: dumps(value).decode())

    def shown(self, show: Callable[[Any], str]) -> pa.Array:
        """What ``saferepr`` writes for each value inside of a tuple, if there is room; ``show`` as ``dumps`` above."""
        if pa.types.is_string(self.kind):
            array = self.array
            if b"'" in content(array):
                array = pc.replace_substring(array, "'", "\\'")
            return _quoted(b"'", array, "None")
        if pa.types.is_floating(self.kind):
            return self._floats if self._are_finite else strings(list(map(str, self.values)))
        if pa.types.is_boolean(self.kind):
            return pc.fill_null(pc.if_else(self.array, "True", "False"), "None")
        return self._simple("None", show)

    @cached_property
    def _is_plain(self) -> bool:
        return is_plain(self.array)

    @cached_property
    def _are_finite(self) -> bool:
        return not self.array.null_count and bool(pc.all(pc.is_finite(self.array)).as_py())

    @cached_property
    def _floats(self) -> pa.Array:
        return strings(list(map(float.__repr__, self.values)))

    def _simple(self, null: str, text_of: Callable[[Any], str]) -> pa.Array:
        if pa.types.is_integer(self.kind) or pa.types.is_boolean(self.kind):
            return pc.fill_null(pc.cast(self.array, pa.string()), null)
        return strings([null if value is None else text_of(value) for value in self.values])


def _quoted(mark: bytes, array: pa.Array, null: str) -> pa.Array:
    quoted = pc.binary_join_element_wise(mark.decode(), array, mark.decode(), "")
    return pc.fill_null(quoted, null) if array.null_count else quoted


def _json_float(value: float | None) -> str:
    if value is None:
        return "null"
    if math.isfinite(value):
        return float.__repr__(value)
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def is_text(kind: pa.DataType) -> bool:
    """Whether it is a string."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


# ---- types
_SAMPLES: list[tuple[Callable[[pa.DataType], bool], Any]] = [
    (pa.types.is_null, None),
    (pa.types.is_boolean, True),
    (pa.types.is_integer, 1),
    (pa.types.is_floating, 1.5),
    (pa.types.is_decimal, Decimal("1.5")),
    (is_text, "text"),
    (pa.types.is_binary, b"\xff"),
    (pa.types.is_large_binary, b"\xff"),
    (pa.types.is_date, dt.date(2026, 1, 2)),
    (pa.types.is_time, dt.time(1, 2)),
    (pa.types.is_duration, dt.timedelta(seconds=1)),
]


def sample(kind: pa.DataType) -> Any:
    """A value such as a column of this type has, to ask a serializer whether it knows it.

    Raises:
        TypeError: no such column can be an argument.
    """
    if pa.types.is_timestamp(kind):
        return dt.datetime(2026, 1, 2, tzinfo=None if kind.tz is None else dt.UTC)
    if pa.types.is_map(kind):
        return {sample(kind.key_type): sample(kind.item_type)}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [sample(kind.value_type)]
    if pa.types.is_struct(kind):
        return {field.name: sample(field.type) for field in kind}
    for matches, value in _SAMPLES:
        if matches(kind):
            return value
    raise TypeError(f"{kind} has no Python value")
