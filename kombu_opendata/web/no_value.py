"""How addresses and forms say that failures without a value are meant, as nothing there means any value."""

from __future__ import annotations

#: stands for failures without a task, an exception, a reason or a worker
NONE = "(none)"


def without_none(value: str) -> str:
    """A value as the broker's filters have it."""
    return "" if value == NONE else value
