"""Messages in columns, the arguments of ``BatchWriter.add_many``."""

from __future__ import annotations

from itertools import repeat
from typing import Any, NamedTuple

#: one value for all rows, or a list with a value for each
Values = Any


class Messages(NamedTuple):
    """Messages of some rows."""

    envelopes: list[bytes]
    headers: dict[str, Values]
    exchange: Values
    routing_key: Values
    priority: Values
    visible_at_ms: Values
    ttl_ms: Values


def interleave(parts: list[tuple[list[int], Messages]], rows: int) -> Messages:
    """Return the messages of several templates, in the order of their rows.

    Args:
        parts: the numbers of the rows of each template, and their messages.
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
