"""Encoding of the rows of one template as messages, column by column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...protocol.envelope import encode_fields, metadata_headers
from ...protocol.header_types import extended
from ...protocol.message_properties import priority_of, ttl_ms_of, visible_at_ms_of
from ...staging.batch_block import PendingRows
from .argument_columns import Argument, Arguments, Column, Constant, values
from .arrow_text import Piece, join, packed_texts
from .celery_template import ID_MARKER, Template
from .plan import ColumnNames

#: one value for all rows, or a list with a value for each
Values = Any


def interleave(parts: list[tuple[list[int], PendingRows]], rows: int) -> PendingRows:
    """Return the messages of several templates, in the order of their rows.

    Args:
        parts: the numbers of the rows of each template, and their messages.
    """
    names = dict.fromkeys(name for _, messages in parts for name in messages.headers)
    headers: dict[str, Values] = {name: [None] * rows for name in names}
    envelopes = [b""] * rows
    fields: dict[str, Values] = {name: [None] * rows for name in parts[0][1].fields}
    for numbers, messages in parts:
        _scatter(numbers, messages.envelopes, envelopes)
        for columns, whole in ((messages.headers, headers), (messages.fields, fields)):
            for name, column in columns.items():
                _scatter(numbers, column, whole[name])
    return PendingRows(envelopes, headers, fields)


def _scatter(numbers: list[int], column: Values, target: list[Any]) -> None:
    for number, value in zip(numbers, column if isinstance(column, list) else repeat(column), strict=False):
        target[number] = value


class UniformRows:
    """Rows with the same task and the same route, of which all or none have an ``expires``.

    Args:
        expires: True if the rows have a value in the column of that name; otherwise they do not expire.
        now_ms: the start of their TTL, ms since the epoch.
    """

    def __init__(
        self, columns: ColumnNames, template: Template, batch: pa.RecordBatch, ids: pa.Array, expires: bool, now_ms: int
    ) -> None:
        self._columns = columns
        self._template = template
        self._batch = batch
        self._ids = ids
        self._headers = dict(template.headers)
        self._properties = dict(template.properties)
        # the columns that differ from row to row: encoded as msgpack, and the headers also as filters read them
        self._header_columns: dict[str, pa.Array] = {}
        self._property_columns: dict[str, pa.Array] = {}
        self._header_texts: dict[str, Values] = {}
        self.priority: Values = priority_of(template.properties.get("priority"))
        self.visible: Values = visible_at_ms_of(template.headers)
        self.ttl: Values = ttl_ms_of(template.properties.get("expiration"))
        if columns.eta is not None:
            self._fill_eta(batch.column(columns.eta))
        if columns.expires is not None:
            self._fill_expires(batch.column(columns.expires), expires, now_ms)
        if columns.priority is not None:
            self._fill_priority(batch.column(columns.priority).to_pylist())
        self._fill_headers()

    def messages(self) -> PendingRows:
        """Return the messages. Common parts are encoded once; the envelope of a row is a join of bytes."""
        template, rows = self._template, self._batch.num_rows
        args = [self._argument(name) for name in self._columns.args]
        kwargs = {keyword: self._argument(name) for keyword, name in self._columns.kwargs.items()}
        arguments = Arguments(args, kwargs, rows)
        args_limit, kwargs_limit, levels = template.repr_limits
        reprs = {}
        if "argsrepr" not in template.shown:
            reprs["argsrepr"] = packed_texts(arguments.args_reprs(args_limit, levels))
        if "kwargsrepr" not in template.shown:
            reprs["kwargsrepr"] = packed_texts(arguments.kwargs_reprs(kwargs_limit, levels))
        ids = packed_texts(self._ids)
        pieces = [
            b"\x97",  # an array of 7
            arguments.packed_bodies(template),
            encode_fields(template.content_type) + encode_fields(template.content_encoding),
            *_map_pieces(self._headers, {**reprs, **self._header_columns}, ids),
            *_map_pieces(self._properties, self._property_columns, ids),
            encode_fields(template.exchange) + encode_fields(template.routing_key),
        ]
        fields = {"exchange": template.exchange, "routing_key": template.routing_key, "priority": self.priority}
        fields |= {"visible_at_ms": self.visible, "ttl_ms": self.ttl}
        return PendingRows(join(pieces, rows).to_pylist(), self._metadata_columns(), fields)

    # ---- columns
    def _argument(self, name: str) -> Argument:
        constants = self._columns.constants
        return Constant(constants[name]) if name in constants else Column(self._batch.column(name))

    def _fill_eta(self, column: pa.Array) -> None:
        self.visible = [0 if us is None else max(0, -(-us // 1000)) for us in _microseconds(column)]
        self._fill_header("eta", [None if at is None else at.isoformat() for at in values(column)])

    def _fill_expires(self, column: pa.Array, expires: bool, now_ms: int) -> None:
        if not expires:
            self._headers["expires"] = None
            self._properties.pop("expiration", None)
            self.ttl = -1
            return
        self.ttl = [max(0, us // 1000 - now_ms) for us in _microseconds(column)]
        self._property_columns["expiration"] = _encoded(map(str, self.ttl))
        self._fill_header("expires", [at.isoformat() for at in values(column)])

    def _fill_priority(self, priorities: list[Any]) -> None:
        usual = self.priority
        self.priority = [usual if value is None else priority_of(value) for value in priorities]
        self._property_columns["priority"] = _encoded(self.priority)

    def _fill_headers(self) -> None:
        for name, column in self._columns.headers.items():
            header_values = values(self._batch.column(column))
            self._fill_header(name, header_values)
            if name == "eta":
                self.visible = [visible_at_ms_of({**self._headers, "eta": value}) for value in header_values]

    def _fill_header(self, name: str, column_values: list[Any]) -> None:
        self._header_columns[name] = _encoded(column_values)
        self._header_texts[name] = [None if value is None else _header_text(name, value) for value in column_values]

    def _metadata_columns(self) -> dict[str, Values]:
        """Return the result of :func:`metadata_headers` for the messages, in columns."""
        template = self._template
        constant = {name: value for name, value in self._headers.items() if name not in self._header_columns}
        priority = 0 if isinstance(self.priority, list) else self.priority
        route = (template.exchange, template.routing_key, priority, template.content_type)
        route_names = metadata_headers({}, *route)
        texts_by_name: dict[str, Values] = dict(metadata_headers(constant, *route))
        ids = self._ids.to_pylist()
        texts_by_name.update((name, ids) for name, value in constant.items() if value == ID_MARKER)
        texts_by_name.update(
            (name, texts)
            for name, texts in self._header_texts.items()
            if name not in (*route_names, "argsrepr", "kwargsrepr")
        )
        if isinstance(self.priority, list):
            texts_by_name["priority"] = list(map(str, self.priority))
        return texts_by_name


def _header_text(name: str, value: Any) -> str | None:
    return metadata_headers({name: value}, "", "", 0, None).get(name) if type(value) is not str else value


def _microseconds(column: pa.Array) -> list[Any]:
    """Return times as microseconds since the epoch; times without a time zone are in UTC."""
    microseconds: list[Any] = pc.cast(pc.cast(column, pa.timestamp("us", column.type.tz)), pa.int64()).to_pylist()
    return microseconds


def _encoded(column_values: Iterable[Any]) -> pa.Array:
    return pa.array([encode_fields(extended(value)) for value in column_values], pa.binary())


def _map_pieces(values: Mapping[str, Any], columns: Mapping[str, pa.Array], ids: pa.Array) -> list[Piece]:
    """Return the pieces of a map in the envelopes: common values, and columns of values encoded as msgpack."""
    size = len(values)
    pieces: list[Piece] = [bytes((0x80 | size,)) if size < 16 else b"\xde" + size.to_bytes(2, "big")]
    for name, value in values.items():
        pieces.append(encode_fields(name))
        if value == ID_MARKER:
            pieces.append(ids)
        else:
            pieces.append(columns[name] if name in columns else encode_fields(extended(value)))
    return pieces
