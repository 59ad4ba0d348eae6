"""Ids of messages as texts, too: those of queues that are not stored are larger than what JavaScript's numbers hold."""

from __future__ import annotations

from dataclasses import dataclass, field

#: of the largest id
_MOST_DIGITS = 20


def id_of(text: str) -> int | None:
    """The id that somebody gives; None if it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


@dataclass(frozen=True)
class Identified:
    """A report with an ``id``; ``id_text`` is the same with all its digits for every JSON parser."""

    id_text: str = field(init=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "id_text", str(vars(self)["id"]))
