"""Who one is."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter

from ..visit import AVisit

router = APIRouter(tags=["session"])


@dataclass(frozen=True)
class Who:
    """Who sends the request, and what they may do.

    Attributes:
        user: empty if the broker has no users.
        roles, configure, write, read: as in docs/permissions.md.
        csrf_token: what browsers have to send as `X-CSRF-Token` with everything that is no GET.
    """

    user: str
    instance: str
    roles: list[str]
    configure: str
    write: str
    read: str
    read_only: bool
    csrf_token: str


@router.get("/session")
async def get_session(visit: AVisit) -> Who:
    """Who you are, and what you may do."""
    who = await visit.broker.identity()
    return Who(
        visit.user or who.user, who.instance, who.roles, who.configure, who.write, who.read,
        visit.site.settings.read_only, visit.visitor.token,
    )  # fmt: skip
