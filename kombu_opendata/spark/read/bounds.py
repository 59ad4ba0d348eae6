"""Bounds of a table's rows: arguments of ``read_table``, and options of ``spark.read``.

======================  ===========================================================  ===================================
bound                   rows that are read                                           tables
======================  ===========================================================  ===================================
``first_id, last_id``   message ids from the first to the last                       all but ``queues``
``gte, gt, lte, lt``    messages received, or attempts ended, at or after, after,    ``messages``, ``attempts``
                        at or before, or before these times
``queues``              rows of these queues                                         ``attempts``, ``available``,
                                                                                     ``in_flight``, ``done``,
                                                                                     ``failed``, ``entries``
``statuses``            entries in one of these states                               ``entries``
======================  ===========================================================  ===================================

As options, ids are numbers, times are ISO 8601 (in UTC if they have no time zone), and the others are names that are
separated by commas or in a JSON array. An empty option is no bound. Spark evaluates all other conditions: its pushdown
of filters into Python sources applies the filters of one query to other queries on the same frame (4.3.0).
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ...errors import RequestError
from ..option_text import names_of
from .tables import STATES

MAX_ID = 1 << 63

_IDS = ("first_id", "last_id")
_TIMES = ("gte", "gt", "lte", "lt")
_NAMES = ("queues", "statuses")
NAMES = (*_IDS, *_TIMES, *_NAMES)
_KINDS = {
    **dict.fromkeys(_IDS, "a message id, a number"),
    **dict.fromkeys(_TIMES, "a datetime (in UTC if it has no zone)"),
    **dict.fromkeys(_NAMES, "a list of names"),
}
_BY_TABLE = {
    **dict.fromkeys(STATES, (*_IDS, "queues")),
    "messages": (*_IDS, *_TIMES),
    "attempts": (*_IDS, *_TIMES, "queues"),
    "entries": (*_IDS, "queues", "statuses"),
    "queues": (),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Bounds:
    """Bounds of one frame, both ends included. Picklable.

    Attributes:
        first_id, last_id: message ids.
        first_ms, last_ms: times, ms since the epoch; None means no bound.
        queues, statuses: the names to read; None means all.
    """

    first_id: int = 0
    last_id: int = MAX_ID
    first_ms: int | None = None
    last_ms: int | None = None
    queues: frozenset[str] | None = None
    statuses: frozenset[str] | None = None

    def has_id(self, message_id: int) -> bool:
        """Return True if a message id is within the bounds."""
        return self.first_id <= message_id <= self.last_id

    def has_time(self, at_ms: int) -> bool:
        """Return True if a time is within the bounds."""
        return (self.first_ms is None or self.first_ms <= at_ms) and (self.last_ms is None or at_ms <= self.last_ms)

    def has_queue(self, queue: str) -> bool:
        """Return True if a queue is within the bounds."""
        return self.queues is None or queue in self.queues


# ---- options
def bound_options(**given: Any) -> dict[str, str]:
    """Return bounds by name as texts of options, without those that are None or empty.

    Raises:
        RequestError: a bound is of the wrong kind.
    """
    options = {}
    for name, value in given.items():
        try:
            text = "" if value is None else _text(name, value)
        except TypeError:
            raise RequestError(f"{name} is {value!r:.200} and must be {_KINDS[name]}", option=name) from None
        if text:
            options[name] = text
    return options


def _text(name: str, value: Any) -> str:
    """Return the text of an option; raise TypeError for a value of the wrong kind."""
    if name in _IDS and not isinstance(value, bool):
        return str(operator.index(value))
    if name in _TIMES and isinstance(value, datetime):
        return value.isoformat()
    if name in _NAMES and not isinstance(value, (str, bytes)):
        names = list(value)
        if all(isinstance(item, str) for item in names):
            return json.dumps(names) if names else ""
    raise TypeError


def parse_bounds(table: str, options: Mapping[str, str]) -> Bounds:
    """Return the bounds among a source's options.

    Raises:
        RequestError: the table does not support a bound, or its text is invalid.
    """
    texts = {name: options[name] for name in NAMES if options.get(name)}
    for name in texts:
        if name not in _BY_TABLE[table]:
            has = f"it has {', '.join(_BY_TABLE[table])}" if _BY_TABLE[table] else "it has none"
            raise RequestError(f"table {table} has no bound {name!r}: {has}; or use where(…)", option=name)
    first = [_edge(name, texts[name]) for name in ("gte", "gt") if name in texts]
    last = [_edge(name, texts[name]) for name in ("lte", "lt") if name in texts]
    queues, statuses = (frozenset(names_of(texts.get(name, ""), name)) for name in _NAMES)
    for state in statuses - set(STATES):
        raise RequestError(f"there is no state {state!r}: choose from {', '.join(STATES)}", option="statuses")
    return Bounds(
        _id(texts, "first_id", 0),
        _id(texts, "last_id", MAX_ID),
        max(first, default=None),
        min(last, default=None),
        queues or None,
        statuses or None,
    )


def _id(given: Mapping[str, str], name: str, usual: int) -> int:
    try:
        return int(given.get(name, usual))
    except ValueError as exc:
        raise RequestError(f"{name} is {given[name]!r} and must be a message id, a number", option=name) from exc


def _edge(name: str, text: str) -> int:
    """Return the first or last millisecond within a bound of time."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError as exc:
        raise RequestError(f"{name} is {text!r} and must be a time in ISO 8601", option=name) from exc
    since = (at if at.tzinfo is not None else at.replace(tzinfo=UTC)) - _EPOCH
    floor, ceiling = since // _MS, -(-since // _MS)
    return {"gte": ceiling, "gt": floor + 1, "lte": floor, "lt": ceiling - 1}[name]
