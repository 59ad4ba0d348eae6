"""Tables of a store, their columns, and bounds of their rows: options of ``spark.read``, arguments of ``read_table``.

Columns are null where a message or queue has no value. Columns marked with * are expensive, and are read only if the
option ``columns``, or a schema, names them.

* ``backlog`` has ready and delayed messages. ``entries`` has the rows of ``backlog``, ``in_flight``, ``done`` and
  ``failed``; ``at`` is the time at which the message is visible, was claimed, is done, or has failed.
* ``attempts``: state, runtime, process, exception, error and traceback are as reported by the worker. ``task`` and
  ``task_id`` are null once the message is collected.
* ``results``: ``value`` is JSON; of another serializer, only ``raw`` has it, as stored. ``task``, ``worker`` and
  ``attempts`` need ``result_extended``.

Only rows within the bounds are read:

* ``first_id``, ``last_id``: message ids from the first to the last.
* ``gte``, ``gt``, ``lte``, ``lt``: messages received, or attempts ended, at or after, after, at or before, or before
  these times.
* ``queues``, ``statuses``: rows of these queues, entries in one of these states.
* ``job_id``: results of the tasks of this Spark job, by its messages that are stored; without ``global_keyprefix``.

The other options are ``table``, ``store`` (also as ``path``, or ``broker_url`` of a folder), ``instance``, ``columns``
(``*`` for all), ``partitions``, ``bucket_endpoint``, ``bucket_region``, ``bucket_access_key_id``,
``bucket_secret_access_key`` and ``bucket_session_token``, as for ``read_table``; and ``parallelism``, the number of
cores, which ``read_table`` knows.

As options, ids are numbers, times are ISO 8601 (in UTC if they have no time zone), and the others are names that are
separated by commas or in a JSON array. An empty option is no bound. Spark evaluates all other conditions: its pushdown
of filters into Python sources applies the filters of one query to other queries on the same frame (4.3.0). It has no
pushdown of columns. Records are stored by row, so two columns of ``messages`` still cost the scan of all.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, SupportsIndex

from ...errors import RequestError
from ..option_text import check_option, names_of

_ENTRY = "queue string, message_id long"
_SETTINGS = "max_attempts int, done_retention_seconds long, failed_retention_seconds long, lease_seconds long"

_DDL = {
    "messages": (
        "message_id long, task string, task_id string, exchange string, routing_key string, priority int, "
        "content_type string, created_at timestamp, received_at timestamp, visible_at timestamp, expires_at timestamp, "
        "headers map<string, string>, payload_bytes long, payload binary, body binary"
    ),
    "queues": (
        "queue string, backlog long, in_flight long, done long, failed long, "
        f"{_SETTINGS}, filter string, arguments string, available long"
    ),
    "backlog": f"{_ENTRY}, priority int, visible_at timestamp, expires_at timestamp, attempts int",
    "in_flight": f"{_ENTRY}, priority int, claimed_at timestamp, leased_until timestamp, attempts int",
    "done": f"{_ENTRY}, done_at timestamp, attempts int",
    "failed": f"{_ENTRY}, failed_at timestamp, attempts int",
    "entries": f"{_ENTRY}, state string, at timestamp, attempts int",
    "attempts": (
        "attempt_id long, message_id long, queue string, consumer string, attempt int, claimed_at timestamp, "
        "ended_at timestamp, outcome string, manual boolean, state string, runtime_ms double, pid long, "
        "exception string, error string, traceback string, task string, task_id string"
    ),
    "results": (
        "task_id string, state string, value string, exception string, error string, traceback string, "
        "ended_at timestamp, expires_at timestamp, task string, worker string, attempts int, raw binary"
    ),
}

#: table → columns that are read only if they are named
COSTLY = {
    "messages": frozenset(("headers", "payload_bytes", "payload", "body")),
    "attempts": frozenset(("error", "traceback", "task", "task_id")),
    "results": frozenset(("raw",)),
}
STATES = ("backlog", "in_flight", "done", "failed")
#: the name of the backlog in earlier versions, still accepted for the table, the state and the column
_OLD_NAME = "available"


def _columns(ddl: str) -> Mapping[str, str]:
    pairs = (part.strip().split(" ", 1) for part in ddl.replace("map<string, string>", "map<string#string>").split(","))
    return MappingProxyType({name: kind.replace("#", ",") for name, kind in pairs})


#: table → column → type
TABLES: Mapping[str, Mapping[str, str]] = MappingProxyType({name: _columns(ddl) for name, ddl in _DDL.items()})


def check_table(table: str) -> str:
    """Return the name of a table; raise RequestError if there is no such table."""
    table = "backlog" if table == _OLD_NAME else table
    if table not in TABLES:
        raise RequestError(f"there is no table {table!r}: choose from {', '.join(TABLES)}", table=table)
    return table


def schema_of(table: str, columns: str = "") -> str:
    """Return the schema of a table as DDL.

    Args:
        columns: names separated by commas; empty for all that are not expensive, ``*`` for all.

    Raises:
        RequestError: there is no such table or column.
    """
    table = check_table(table)
    types = TABLES[table]
    if columns.strip() == "*":
        names = [name for name in types if name != _OLD_NAME]
    elif columns.strip():
        names = list(names_of(columns, "columns"))
    else:
        names = [name for name in types if name not in COSTLY.get(table, ()) and name != _OLD_NAME]
    check_columns(table, names)
    return ", ".join(f"{name} {types[name]}" for name in names)


def check_columns(table: str, names: list[str]) -> None:
    """Raise RequestError if the table does not have all these columns, or one of them is named twice."""
    for name in names:
        if names.count(name) > 1:
            raise RequestError(f"the column {name!r} is named twice", column=name)
        if name not in TABLES[table]:
            known = ", ".join(known for known in TABLES[table] if known != _OLD_NAME)
            raise RequestError(f"table {table} has no column {name!r}: it has {known}", column=name)


MAX_ID = 1 << 63

_IDS = ("first_id", "last_id")
_TIMES = ("gte", "gt", "lte", "lt")
_NAMES = ("queues", "statuses")
_JOB = "job_id"
BOUNDS = (*_IDS, *_TIMES, *_NAMES, _JOB)
_KINDS = {
    **dict.fromkeys(_IDS, "a message id, a number"),
    **dict.fromkeys(_TIMES, "a datetime (in UTC if it has no zone)"),
    **dict.fromkeys(_NAMES, "a list of names"),
    _JOB: "a text",
}
BOUNDS_OF = {
    **dict.fromkeys(STATES, (*_IDS, "queues")), "messages": (*_IDS, *_TIMES),
    "attempts": (*_IDS, *_TIMES, "queues"), "entries": (*_IDS, "queues", "statuses"), "queues": (),
    "results": (_JOB,),
}  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Bounds:
    """Bounds of one frame, both ends included. Picklable. None means no bound."""

    first_id: int = 0
    last_id: int = MAX_ID
    first_ms: int | None = None
    last_ms: int | None = None
    queues: frozenset[str] | None = None
    statuses: frozenset[str] | None = None
    job_id: str = ""

    def has_id(self, message_id: int) -> bool:
        return self.first_id <= message_id <= self.last_id

    def has_time(self, at_ms: int) -> bool:
        return (self.first_ms is None or self.first_ms <= at_ms) and (self.last_ms is None or at_ms <= self.last_ms)

    def has_queue(self, queue: str) -> bool:
        return self.queues is None or queue in self.queues


def bound_options(**bounds: Any) -> dict[str, str]:
    """Return bounds, without those that are None or empty, as texts of options; raise RequestError for a wrong type."""
    options = {}
    for name, value in bounds.items():
        text = None if value is not None else ""
        if name in _IDS and isinstance(value, SupportsIndex) and not isinstance(value, bool):
            text = str(operator.index(value))
        elif name in _TIMES and isinstance(value, datetime):
            text = value.isoformat()
        elif name in _NAMES and isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
            names = list(value)
            if all(isinstance(item, str) for item in names):
                text = json.dumps(names) if names else ""
        elif name == _JOB and isinstance(value, str):
            text = value
        check_option(name, value, text is not None, _KINDS[name])
        if text:
            options[name] = text
    return options


def parse_bounds(table: str, options: Mapping[str, str]) -> Bounds:
    """Return the bounds among a source's options.

    Raises RequestError if the table does not support a bound, or its text is invalid.
    """
    texts = {name: options[name] for name in BOUNDS if options.get(name)}
    for name in texts:
        if name not in BOUNDS_OF[table]:
            has = f"it has {', '.join(BOUNDS_OF[table])}" if BOUNDS_OF[table] else "it has none"
            raise RequestError(f"table {table} has no bound {name!r}: {has}; or use where(…)", option=name)
    first = [_edge(name, texts[name]) for name in ("gte", "gt") if name in texts]
    last = [_edge(name, texts[name]) for name in ("lte", "lt") if name in texts]
    queues, statuses = (frozenset(names_of(texts.get(name, ""), name)) for name in _NAMES)
    statuses = frozenset("backlog" if state == _OLD_NAME else state for state in statuses)
    for state in statuses - set(STATES):
        raise RequestError(f"there is no state {state!r}: choose from {', '.join(STATES)}", option="statuses")
    return Bounds(
        _id(texts, "first_id", 0),
        _id(texts, "last_id", MAX_ID),
        max(first, default=None),
        min(last, default=None),
        queues or None,
        statuses or None,
        texts.get(_JOB, ""),
    )


def _id(texts: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(texts.get(name, default))
    except ValueError as exc:
        raise RequestError(f"{name} is {texts[name]!r} and must be {_KINDS[name]}", option=name) from exc


def _edge(name: str, text: str) -> int:
    """Return the first (or for an upper bound, the last) millisecond within a bound of time."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError as exc:
        raise RequestError(f"{name} is {text!r} and must be a time in ISO 8601", option=name) from exc
    since = (at if at.tzinfo is not None else at.replace(tzinfo=UTC)) - _EPOCH
    floor, ceiling = since // _MS, -(-since // _MS)
    return {"gte": ceiling, "gt": floor + 1, "lte": floor, "lt": ceiling - 1}[name]
