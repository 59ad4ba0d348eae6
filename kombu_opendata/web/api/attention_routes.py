"""Route of the findings: problems that need attention."""

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
        kind: the kind of problem, one word.
        text: the problem as a sentence.
        subject: the name of the object that the sentence is about.
        view, query: the view of the web UI where the problem can be fixed.
    """

    kind: str
    severity: Severity
    text: str
    subject: str
    view: str
    query: dict[str, str]


@router.get("/attention")
async def list_findings(visit: AVisit) -> list[Told]:
    """Return the findings, the most severe first."""
    findings = await attention(visit.broker)
    return [
        Told(finding.kind, finding.severity, finding.text, finding.subject, finding.view, finding.query)
        for finding in findings
    ]
