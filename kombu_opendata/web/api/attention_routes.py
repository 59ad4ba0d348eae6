"""Route of the findings: problems that need attention."""

from __future__ import annotations

from fastapi import APIRouter

from ..reports.attention import attention
from ..reports.attention_rules import AttentionFinding
from ..visit import AVisit

router = APIRouter(tags=["overview"])


@router.get("/attention")
async def list_findings(visit: AVisit) -> list[AttentionFinding]:
    """Return the findings, the most severe first."""
    return await attention(visit.broker)
