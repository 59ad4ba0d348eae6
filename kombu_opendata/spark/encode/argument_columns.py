"""Arrow columns as arguments of tasks: Python values, JSON, and reprs.

The table of tests/spark/values.md shows the result for each Spark type. Columns are converted as a whole, which takes a
tenth of the time of a conversion by row. The results are those of ``json.dumps``, the ``msgspec`` serializer and
Celery's ``saferepr``.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from celery.utils.saferepr import saferepr
from kombu.compression import compress
from kombu.serialization import registry
from kombu.utils.json import dumps as json_dumps

from ...celery_integration.serializer import dumps as compact_dumps
from ...errors import InvalidMessage
from .arrow_text import Piece, content, is_plain, join, packed_bytes, packed_texts, strings
from .celery_template import Template

Convert = Callable[[Any], Any]

#: the JSON of a str, as ``json.dumps`` writes it by default
json_quote: Callable[[str], str] = json.encoder.encode_basestring_ascii


# ---- Python values
def values(array: pa.Array) -> list[Any]:
    """Return a column's values as Python objects; times with a time zone are aware and in UTC."""
    items: list[Any] = array.to_pylist()
    convert = converter(array.type)
    return items if convert is None else [None if value is None else convert(value) for value in items]


def converter(kind: pa.DataType) -> Convert | None:
    """Return a conversion for the Python objects that pyarrow creates for this type; None if they need none."""
    if pa.types.is_timestamp(kind):
        return None if kind.tz is None else lambda value: value.astimezone(dt.UTC)
    if pa.types.is_map(kind):
        key, item = _each(kind.key_type), _each(kind.item_type)
        return lambda pairs: {key(k): item(v) for k, v in pairs}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item_converter = _each(kind.value_type)
        return None if converter(kind.value_type) is None else lambda items: list(map(item_converter, items))
    if pa.types.is_struct(kind):
        fields = {field.name: _each(field.type) for field in kind if converter(field.type) is not None}
        convert = fields.items()
        return (lambda value: value | {name: each(value[name]) for name, each in convert}) if fields else None
    return None


def _each(kind: pa.DataType) -> Convert:
    convert = converter(kind)
    return lambda value: value if value is None or convert is None else convert(value)


# ---- arguments
class Constant:
    """Argument that is the same for all rows. Its methods are those of :class:`Column`."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def value(self, row: int) -> Any:
        return self._value

    def json(self, dumps: Callable[[Any], str]) -> bytes:
        return dumps(self._value).encode()

    def compact(self, dumps: Callable[[Any], bytes]) -> bytes:
        return dumps(self._value)

    def shown(self, show: Callable[[Any], str]) -> bytes:
        return show(self._value).encode()


class Column:
    """Argument that differs from row to row."""

    def __init__(self, array: pa.Array) -> None:
        self.array = pc.cast(array, pa.string()) if pa.types.is_large_string(array.type) else array
        self.kind = self.array.type

    @cached_property
    def values(self) -> list[Any]:
        return values(self.array)

    def value(self, row: int) -> Any:
        return self.values[row]

    def json(self, dumps: Callable[[Any], str]) -> pa.Array:
        """Return each value's JSON as of ``json.dumps``; ``dumps`` is for types without a fast path."""
        if pa.types.is_string(self.kind):
            if self._is_plain:
                return _quoted(b'"', self.array, "null")
            return strings(["null" if value is None else json_quote(value) for value in self.values])
        if pa.types.is_floating(self.kind):
            return self._floats if self._are_finite else strings(json.dumps(self.values)[1:-1].split(", "))
        return self._simple("null", dumps)

    def compact(self, dumps: Callable[[Any], bytes]) -> pa.Array:
        """Return each value's JSON, as the ``msgspec`` serializer writes it."""
        if pa.types.is_string(self.kind) and self._is_plain:
            return _quoted(b'"', self.array, "null")
        return self._simple("null", lambda value: dumps(value).decode())

    def shown(self, show: Callable[[Any], str]) -> pa.Array:
        """Return the uncut ``saferepr`` of each value inside a tuple; ``show`` is for types without a fast path."""
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
        return not self.array.null_count and bool(pc.all(pc.is_finite(self.array), min_count=0).as_py())

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


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


Argument: TypeAlias = Column | Constant


def required_texts(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column's texts; raise InvalidMessage if a row has null or an empty text, ArrowInvalid if no UTF-8."""
    texts = pc.cast(batch.column(name), pa.string())
    texts.validate(full=True)
    if texts.null_count or not pc.all(pc.not_equal(texts, "")).as_py():
        raise InvalidMessage("it must be a text that is not empty", column=name)
    return texts


# ---- types
_SAMPLES: list[tuple[Callable[[pa.DataType], bool], Any]] = [
    (pa.types.is_null, None), (pa.types.is_boolean, True), (pa.types.is_integer, 1),
    (pa.types.is_floating, 1.5), (pa.types.is_decimal, Decimal("1.5")), (is_text, "text"),
    (pa.types.is_binary, b"\xff"), (pa.types.is_large_binary, b"\xff"), (pa.types.is_date, dt.date(2026, 1, 2)),
    (pa.types.is_time, dt.time(1, 2)), (pa.types.is_duration, dt.timedelta(seconds=1)),
]  # fmt: skip


def sample(kind: pa.DataType) -> Any:
    """Return a value of this type, which tests whether a serializer accepts it.

    Raises TypeError if a column of this type can't be an argument.
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


class Arguments:
    """Arguments of some rows."""

    def __init__(self, args: Sequence[Argument], kwargs: Mapping[str, Argument], rows: int) -> None:
        self._args = args
        self._kwargs = kwargs
        self._rows = rows

    def args_of(self, row: int) -> tuple[Any, ...]:
        return tuple(argument.value(row) for argument in self._args)

    def kwargs_of(self, row: int) -> dict[str, Any]:
        return {keyword: argument.value(row) for keyword, argument in self._kwargs.items()}

    # ---- bodies
    def packed_bodies(self, template: Template) -> pa.Array:
        """Return the serialized bodies of all rows, each encoded as a msgpack str or bin."""
        texts = self._texts(template)
        if texts is not None and not template.compression:
            return packed_texts(texts) if _makes_text(template) else packed_bytes(texts)
        if texts is None:  # any serializer, row by row
            rows = ((self.args_of(row), self.kwargs_of(row), template.embed) for row in range(self._rows))
            bodies = [registry.dumps(row, template.serializer)[2] for row in rows]
        else:
            bodies = texts.to_pylist()
        if template.compression:
            bodies = [compress(body, template.compression)[0] for body in bodies]
        if bodies and isinstance(bodies[0], str):
            return packed_texts(strings(bodies))
        return packed_bytes(pa.array(bodies, pa.binary()))

    def _texts(self, template: Template) -> pa.Array | None:
        """Return bodies joined from the texts of each argument; None if the serializer's texts can't be joined."""
        encoder = registry._encoders[template.serializer].encoder
        if _makes_text(template):
            embed = json_dumps(template.embed).encode()
            return self._json(
                b", ", b": ", embed, lambda argument: argument.json(json_dumps), lambda key: json_quote(key).encode()
            )
        if encoder is compact_dumps:
            embed = compact_dumps(template.embed)
            return self._json(b",", b":", embed, lambda argument: argument.compact(compact_dumps), compact_dumps)
        return None

    def _json(
        self, comma: bytes, colon: bytes, embed: bytes, texts: Callable[[Argument], Piece], key: Callable[[str], bytes]
    ) -> pa.Array:
        args: list[Piece] = []
        for argument in self._args:
            args += (comma, texts(argument))
        kwargs: list[Piece] = []
        for keyword, argument in self._kwargs.items():
            kwargs += (comma, key(keyword) + colon, texts(argument))
        pieces = [b"[[", *args[1:], b"]" + comma + b"{", *kwargs[1:], b"}" + comma + embed + b"]"]
        return join(pieces, self._rows)

    # ---- reprs
    def args_reprs(self, limit: int, levels: int) -> pa.Array:
        pieces: list[Piece] = []
        for argument in self._args:
            pieces += (b", ", self._shown(argument, limit, levels))
        end = b",)" if len(self._args) == 1 else b")"
        return self._within([b"(", *pieces[1:], end], limit, levels, self.args_of)

    def kwargs_reprs(self, limit: int, levels: int) -> pa.Array:
        pieces: list[Piece] = []
        for keyword, argument in self._kwargs.items():
            key = saferepr(keyword, limit, levels).encode()
            pieces += (b", ", key + b": ", self._shown(argument, limit, levels))
        return self._within([b"{", *pieces[1:], b"}"], limit, levels, self.kwargs_of)

    def _shown(self, argument: Argument, limit: int, levels: int) -> Piece:
        # In a tuple, because ``saferepr`` counts levels from the tuple of all arguments. With twice the limit, an
        # argument that it cuts is still longer than the limit, so :meth:`_within` replaces the repr of that row.
        return argument.shown(lambda value: saferepr((value,), 2 * limit, levels)[1:-2])

    def _within(self, pieces: list[Piece], limit: int, levels: int, whole: Callable[[int], Any]) -> pa.Array:
        """Return the joined pieces; for rows that reach the limit, their ``saferepr``."""
        joined = pc.cast(join(pieces, self._rows), pa.string())
        long = pc.greater_equal(pc.utf8_length(joined), limit)
        if not pc.any(long).as_py():
            return joined
        texts = joined.to_pylist()
        for row in pc.indices_nonzero(long).to_pylist():
            texts[row] = saferepr(whole(row), limit, levels)
        return strings(texts)


def _makes_text(template: Template) -> bool:
    """Return True if the serializer is Kombu's JSON, whose bodies are text."""
    return registry._encoders[template.serializer].encoder is json_dumps
