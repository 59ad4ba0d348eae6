"""Ids of messages, as numbers and as texts: ids of unstored queues exceed the range of JavaScript's numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

#: digits of the largest id
_MOST_DIGITS = 20


def id_of(text: str) -> int | None:
    """Return the id that a text contains; None if it contains none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


@dataclass(frozen=True)
class Identified:
    """A report with an ``id``; ``id_text`` is the same with all its digits for every JSON parser."""

    id_text: str = field(init=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "id_text", str(vars(self)["id"]))
