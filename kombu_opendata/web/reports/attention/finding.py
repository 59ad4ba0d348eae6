"""A finding: one sentence about something that is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

#: ``bad``: work is not done, or soon will not be. ``warn``: look at it today. ``note``: somebody may have forgotten it.
Severity = Literal["bad", "warn", "note"]
SEVERITIES: tuple[Severity, ...] = ("bad", "warn", "note")


@dataclass(frozen=True)
class AttentionFinding:
    """One sentence: ``before``, the name of the thing, and ``after``.

    Attributes:
        kind: what is wrong, one word for programs.
        subject: the thing's name, which may hold anything.
        view, query: where it is mended: a view of the page, and what it is asked for.
        weight: of two findings of the same severity and kind, the one with more comes first.
    """

    kind: str
    severity: Severity
    before: str
    subject: str
    after: str
    view: str
    query: dict[str, str] = field(default_factory=dict, hash=False)
    weight: float = 0.0

    @property
    def text(self) -> str:
        """The sentence."""
        return f"{self.before}{self.subject}{self.after}"
