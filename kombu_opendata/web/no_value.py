"""Marker of failures without a value in addresses and forms, where an empty value means any."""

from __future__ import annotations

#: stands for failures without a task, an exception, a reason or a worker
NONE = "(none)"


def without_none(value: str) -> str:
    """Return a value as the broker's filters expect it."""
    return "" if value == NONE else value
