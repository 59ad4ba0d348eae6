"""Finding: one sentence about a problem."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

#: ``bad``: work is not done, or soon will not be. ``warn``: to be checked today. ``note``: possibly forgotten.
Severity = Literal["bad", "warn", "note"]
SEVERITIES: tuple[Severity, ...] = ("bad", "warn", "note")


@dataclass(frozen=True)
class AttentionFinding:
    """One sentence: ``before``, the name of the object, and ``after``.

    Attributes:
        kind: the kind of problem, one word for programs.
        subject: the object's name, which may hold any text.
        view, query: the view of the web UI where the problem can be fixed, and its parameters.
        weight: the rank among findings of the same severity and kind; the largest comes first.
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
