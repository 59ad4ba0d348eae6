"""Tables of ``spark.read.format("opendata").option("table", …)`` and their columns.

Times are timestamps. Columns are null where a message or queue has no value. Columns marked with * are expensive, and
are read only if the option ``columns``, or a schema, names them.

===============  ====================================================================================================
table            columns
===============  ====================================================================================================
``messages``     message_id, task, task_id, exchange, routing_key, priority, content_type, created_at, received_at,
                 visible_at, expires_at, headers*, payload_bytes*, payload*, body*
``queues``       queue, available, in_flight, done, failed, max_attempts, done_retention_seconds,
                 failed_retention_seconds, lease_seconds, filter, arguments
``available``    queue, message_id, priority, visible_at, expires_at, attempts
``in_flight``    queue, message_id, priority, claimed_at, leased_until, attempts
``done``         queue, message_id, done_at, attempts
``failed``       queue, message_id, failed_at, attempts
``entries``      queue, message_id, state (one of the four above), at (visible, claimed, done or failed), attempts
``attempts``     attempt_id, message_id, queue, consumer, attempt, claimed_at, ended_at, outcome, manual,
                 state, runtime_ms, pid, exception (as reported by the worker)
===============  ====================================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ...errors import RequestError

_ENTRY = "queue string, message_id long"
_SETTINGS = "max_attempts int, done_retention_seconds long, failed_retention_seconds long, lease_seconds long"

_DDL = {
    "messages": (
        "message_id long, task string, task_id string, exchange string, routing_key string, priority int, "
        "content_type string, created_at timestamp, received_at timestamp, visible_at timestamp, expires_at timestamp, "
        "headers map<string, string>, payload_bytes long, payload binary, body binary"
    ),
    "queues": (
        "queue string, available long, in_flight long, done long, failed long, "
        f"{_SETTINGS}, filter string, arguments string"
    ),
    "available": f"{_ENTRY}, priority int, visible_at timestamp, expires_at timestamp, attempts int",
    "in_flight": f"{_ENTRY}, priority int, claimed_at timestamp, leased_until timestamp, attempts int",
    "done": f"{_ENTRY}, done_at timestamp, attempts int",
    "failed": f"{_ENTRY}, failed_at timestamp, attempts int",
    "entries": f"{_ENTRY}, state string, at timestamp, attempts int",
    "attempts": (
        "attempt_id long, message_id long, queue string, consumer string, attempt int, claimed_at timestamp, "
        "ended_at timestamp, outcome string, manual boolean, state string, runtime_ms double, pid long, "
        "exception string"
    ),
}

#: columns that are read only if they are named
COSTLY = frozenset(("headers", "payload_bytes", "payload", "body"))
STATES = ("available", "in_flight", "done", "failed")


def _columns(ddl: str) -> Mapping[str, str]:
    pairs = (part.strip().split(" ", 1) for part in ddl.replace("map<string, string>", "map<string#string>").split(","))
    return MappingProxyType({name: kind.replace("#", ",") for name, kind in pairs})


#: table → column → type
TABLES: Mapping[str, Mapping[str, str]] = MappingProxyType({name: _columns(ddl) for name, ddl in _DDL.items()})


def check_table(table: str) -> str:
    """Return the name of a table; raise RequestError if there is no such table."""
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
    types = TABLES[check_table(table)]
    if columns.strip() == "*":
        names = list(types)
    elif columns.strip():
        names = [name.strip() for name in columns.split(",") if name.strip()]
    else:
        names = [name for name in types if name not in COSTLY]
    check_columns(table, names)
    return ", ".join(f"{name} {types[name]}" for name in names)


def check_columns(table: str, names: list[str]) -> None:
    """Raise RequestError if the table does not have all these columns."""
    for name in names:
        if name not in TABLES[table]:
            raise RequestError(f"table {table} has no column {name!r}: it has {', '.join(TABLES[table])}", column=name)
