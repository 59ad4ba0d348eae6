"""Ids of messages as texts, too: those of queues that are not stored are larger than what JavaScript's numbers hold."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Identified:
    """A report with an ``id``; ``id_text`` is the same with all its digits for every JSON parser."""

    id_text: str = field(init=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "id_text", str(vars(self)["id"]))
