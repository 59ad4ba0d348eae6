"""What needs attention."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter

from ..reports.attention.finding import Severity
from ..reports.attention.gather import attention
from ..visit import AVisit

router = APIRouter(tags=["overview"])


@dataclass(frozen=True)
class Told:
    """A finding.

    Attributes:
        kind: what is wrong, one word.
        text: the same as a sentence.
        subject: the name of the thing that the sentence is about.
        view, query: the view of the page where it is mended.
    """

    kind: str
    severity: Severity
    text: str
    subject: str
    view: str
    query: dict[str, str]


@router.get("/attention")
async def list_findings(visit: AVisit) -> list[Told]:
    """What needs attention, the most severe first."""
    found = await attention(visit.broker)
    return [Told(one.kind, one.severity, one.text, one.subject, one.view, one.query) for one in found]
