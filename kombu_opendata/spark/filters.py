"""What filters of a query leave to read: ranges of message ids and times, queues, states.

Each filter is also left to Spark, so a bound may be too wide but never too narrow.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

MAX_ID = 1 << 63


@dataclass(frozen=True)
class Bounds:
    """Picklable.

    Attributes:
        first_id, last_id: message ids from and up to these.
        first_ms, last_ms: received at (of messages) or ended at (of attempts), ms since the epoch; None for no bound.
        queues, states: only these; None for all.
    """

    first_id: int = 0
    last_id: int = MAX_ID
    first_ms: int | None = None
    last_ms: int | None = None
    queues: frozenset[str] | None = None
    states: frozenset[str] | None = None

    def narrowed(self, filters: Iterable[Any]) -> Bounds:
        """With pyspark's filters, all of which must hold."""
        bounds = self
        for each in filters:
            column = ".".join(getattr(each, "attribute", ()))
            narrow = _NARROW.get((type(each).__name__, column))
            if narrow is not None and each.value is not None:
                bounds = narrow(bounds, each.value)
        return bounds

    def wants(self, queue: str) -> bool:
        """Whether entries of the queue are wanted."""
        return self.queues is None or queue in self.queues


def _id_from(bounds: Bounds, value: Any) -> Bounds:
    return replace(bounds, first_id=max(bounds.first_id, int(value)))


def _id_to(bounds: Bounds, value: Any) -> Bounds:
    return replace(bounds, last_id=min(bounds.last_id, int(value)))


def _id_is(bounds: Bounds, value: Any) -> Bounds:
    return _id_to(_id_from(bounds, value), value)


def _id_in(bounds: Bounds, values: Any) -> Bounds:
    found = [int(value) for value in values if value is not None]
    return _id_to(_id_from(bounds, min(found)), max(found)) if found else bounds


def _time_from(bounds: Bounds, value: Any) -> Bounds:
    ms = _ms(value)
    return replace(bounds, first_ms=ms if bounds.first_ms is None else max(bounds.first_ms, ms))


def _time_to(bounds: Bounds, value: Any) -> Bounds:
    ms = _ms(value) + 1  # rounded up
    return replace(bounds, last_ms=ms if bounds.last_ms is None else min(bounds.last_ms, ms))


def _time_is(bounds: Bounds, value: Any) -> Bounds:
    return _time_to(_time_from(bounds, value), value)


def _ms(value: dt.datetime) -> int:
    """Spark gives a timestamp as UTC, with or without saying so."""
    aware = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
    return int((aware - _EPOCH) // dt.timedelta(milliseconds=1))


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def _queue_in(bounds: Bounds, values: Any) -> Bounds:
    found = frozenset(values if isinstance(values, (list, tuple, set, frozenset)) else (values,))
    return replace(bounds, queues=found if bounds.queues is None else bounds.queues & found)


def _state_in(bounds: Bounds, values: Any) -> Bounds:
    found = frozenset(values if isinstance(values, (list, tuple, set, frozenset)) else (values,))
    return replace(bounds, states=found if bounds.states is None else bounds.states & found)


_NARROW = {
    ("EqualTo", "message_id"): _id_is,
    ("EqualNullSafe", "message_id"): _id_is,
    ("In", "message_id"): _id_in,
    ("GreaterThan", "message_id"): _id_from,
    ("GreaterThanOrEqual", "message_id"): _id_from,
    ("LessThan", "message_id"): _id_to,
    ("LessThanOrEqual", "message_id"): _id_to,
    ("EqualTo", "received_at"): _time_is,
    ("GreaterThan", "received_at"): _time_from,
    ("GreaterThanOrEqual", "received_at"): _time_from,
    ("LessThan", "received_at"): _time_to,
    ("LessThanOrEqual", "received_at"): _time_to,
    ("EqualTo", "ended_at"): _time_is,
    ("GreaterThan", "ended_at"): _time_from,
    ("GreaterThanOrEqual", "ended_at"): _time_from,
    ("LessThan", "ended_at"): _time_to,
    ("LessThanOrEqual", "ended_at"): _time_to,
    ("EqualTo", "queue"): _queue_in,
    ("In", "queue"): _queue_in,
    ("EqualTo", "state"): _state_in,
    ("In", "state"): _state_in,
}
