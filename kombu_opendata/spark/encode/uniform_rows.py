"""Rows of one template as messages, in columns; and columns of several templates put in order again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import InvalidMessage
from ...protocol.envelope import metadata_headers
from ...transport.publish_request import priority_of, ttl_ms_of, visible_at_ms_of
from . import argument_columns as cols
from . import envelope_template
from .arrow_text import join, packed_texts
from .plan import Columns
from .task_bodies import Argument, Arguments, Constant
from .template import ID_MARKER, Template

#: one value for all rows, or a list with one for each
Values = Any

_REPRS = {"argsrepr": envelope_template.ARGSREPR, "kwargsrepr": envelope_template.KWARGSREPR}


class Messages(NamedTuple):
    """Messages in columns, as ``BatchWriter.add_many`` takes them."""

    envelopes: list[bytes]
    headers: dict[str, Values]
    exchange: Values
    routing_key: Values
    priority: Values
    visible_at_ms: Values
    ttl_ms: Values


class Alike:
    """Rows that have the same task, the same route, and all an ``expires`` of their own or none.

    Args:
        expires: whether the column of that name counts for these rows; else they do not expire.
        now_ms: from when an ``expires`` is counted, ms since the epoch.
    """

    def __init__(
        self, columns: Columns, template: Template, batch: pa.RecordBatch, ids: pa.Array, expires: bool, now_ms: int
    ) -> None:
        self._columns, self._template, self._batch, self._ids = columns, template, batch, ids
        self._headers, self._properties = dict(template.headers), dict(template.properties)
        self._header_slots = {name: slot for name, slot in _REPRS.items() if name not in template.shown}
        self._property_slots: dict[str, str] = {}
        self._filled: dict[str, pa.Array] = {}
        self._seen: dict[str, Values] = {}
        self.priority: Values = priority_of(template.properties.get("priority"))
        self.visible: Values = visible_at_ms_of(template.headers)
        self.ttl: Values = ttl_ms_of(template.properties.get("expiration"))
        self._fill_eta()
        self._fill_expires(expires, now_ms)
        self._fill_priority()
        self._fill_headers()

    def messages(self) -> Messages:
        """All rows, in order."""
        template = self._template
        self._fill_arguments()
        self._fill_ids()
        envelope = replace(template, headers=self._headers, properties=self._properties)
        parts = envelope_template.compile_envelope(envelope, self._header_slots, self._property_slots)
        pieces = [part if isinstance(part, bytes) else self._filled[part] for part in parts]
        envelopes = join(pieces, self._batch.num_rows).to_pylist()
        return Messages(
            envelopes,
            self._seen_headers(),
            template.exchange,
            template.routing_key,
            self.priority,
            self.visible,
            self.ttl,
        )

    # ---- columns
    def _column(self, name: str) -> pa.Array:
        return self._batch.column(self._batch.schema.get_field_index(name))

    def _argument(self, name: str) -> Argument:
        constants = self._columns.constants
        return Constant(constants[name]) if name in constants else cols.Column(self._column(name))

    def _fill_eta(self) -> None:
        name = self._columns.eta
        if name is None:
            return
        column = self._column(name)
        self.visible = [0 if us is None else max(0, -(-us // 1000)) for us in _microseconds(column)]
        self._header(
            "eta", envelope_template.ETA, [None if at is None else at.isoformat() for at in cols.values(column)]
        )

    def _fill_expires(self, expires: bool, now_ms: int) -> None:
        name = self._columns.expires
        if name is None:
            return
        if not expires:
            self._headers["expires"], self.ttl = None, -1
            self._properties.pop("expiration", None)
            return
        column = self._column(name)
        self.ttl = [max(0, us // 1000 - now_ms) for us in _microseconds(column)]
        self._property_slots["expiration"] = envelope_template.EXPIRATION
        self._filled[envelope_template.EXPIRATION] = _encoded(map(str, self.ttl))
        self._header("expires", envelope_template.EXPIRES, [at.isoformat() for at in cols.values(column)])

    def _fill_priority(self) -> None:
        name = self._columns.priority
        if name is None:
            return
        given, usual = self._column(name).to_pylist(), self.priority
        self.priority = [usual if value is None else priority_of(value) for value in given]
        self._property_slots["priority"] = envelope_template.PRIORITY
        self._filled[envelope_template.PRIORITY] = _encoded(self.priority)

    def _fill_headers(self) -> None:
        for name, column in self._columns.headers.items():
            values = cols.values(self._column(column))
            self._header(name, envelope_template.HEADER + name, values)
            if name == "eta":
                self.visible = [visible_at_ms_of({**self._headers, "eta": value}) for value in values]

    def _header(self, name: str, slot: str, values: list[Any]) -> None:
        self._header_slots[name] = slot
        self._filled[slot] = _encoded(values)
        self._seen[name] = [None if value is None else _seen_text(name, value) for value in values]

    def _fill_ids(self) -> None:
        self._filled[envelope_template.ID] = packed_texts(self._ids)

    def _fill_arguments(self) -> None:
        arguments = Arguments(
            [self._argument(name) for name in self._columns.args],
            {keyword: self._argument(name) for keyword, name in self._columns.kwargs.items()},
            self._batch.num_rows,
        )
        args_limit, kwargs_limit, levels = self._template.repr_limits
        self._filled[envelope_template.BODY] = arguments.packed_bodies(self._template)
        used = self._header_slots.values()
        if envelope_template.ARGSREPR in used:
            self._filled[envelope_template.ARGSREPR] = packed_texts(arguments.args_reprs(args_limit, levels))
        if envelope_template.KWARGSREPR in used:
            self._filled[envelope_template.KWARGSREPR] = packed_texts(arguments.kwargs_reprs(kwargs_limit, levels))

    def _seen_headers(self) -> dict[str, Values]:
        """What filters see of the messages: :func:`metadata_headers`, but in columns."""
        template = self._template
        constant = {name: value for name, value in self._headers.items() if name not in self._header_slots}
        priority = 0 if isinstance(self.priority, list) else self.priority
        own = metadata_headers({}, template.exchange, template.routing_key, priority, template.content_type)
        seen: dict[str, Values] = dict(
            metadata_headers(constant, template.exchange, template.routing_key, priority, template.content_type)
        )
        ids = self._ids.to_pylist()
        seen.update((name, ids) for name, value in constant.items() if value == ID_MARKER)
        seen.update((name, texts) for name, texts in self._seen.items() if name not in own and name not in _REPRS)
        if isinstance(self.priority, list):
            seen["priority"] = list(map(str, self.priority))
        return seen


def _seen_text(name: str, value: Any) -> str | None:
    return metadata_headers({name: value}, "", "", 0, None).get(name) if type(value) is not str else value


def _microseconds(column: pa.Array) -> list[Any]:
    """Times as microseconds since the epoch; those without a zone are in UTC."""
    found: list[Any] = pc.cast(pc.cast(column, pa.timestamp("us", column.type.tz)), pa.int64()).to_pylist()
    return found


def _encoded(values: Iterable[Any]) -> pa.Array:
    return pa.array(list(map(envelope_template.encode, values)), pa.binary())


def texts(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A column that must have a text in each row.

    Raises:
        InvalidMessage: it has null or an empty text somewhere.
    """
    column = batch.column(batch.schema.get_field_index(name))
    found = pc.cast(column, pa.string())
    if found.null_count or not pc.all(pc.not_equal(found, "")).as_py():
        raise InvalidMessage("it must be a text that is not empty", column=name)
    return found


def interleave(parts: list[tuple[list[int], Messages]], rows: int) -> Messages:
    """Messages of several templates in the order of their rows.

    Args:
        parts: each template's rows and their messages.
    """
    names = dict.fromkeys(name for _, messages in parts for name in messages.headers)
    headers: dict[str, Values] = {name: [None] * rows for name in names}
    whole = Messages([b""] * rows, headers, *([None] * rows for _ in range(5)))
    for numbers, messages in parts:
        _scatter(numbers, messages.envelopes, whole.envelopes)
        for name, values in messages.headers.items():
            _scatter(numbers, values, headers[name])
        for values, target in zip(messages[2:], whole[2:], strict=True):
            _scatter(numbers, values, target)
    return whole


def _scatter(numbers: list[int], values: Values, target: list[Any]) -> None:
    for number, value in zip(numbers, values if isinstance(values, list) else repeat(values), strict=False):
        target[number] = value
