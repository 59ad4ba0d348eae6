"""Route of the current user."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter

from ..visit import AVisit

router = APIRouter(tags=["session"])


@dataclass(frozen=True)
class Who:
    """The user of the request, with its permissions.

    Attributes:
        user: empty if the broker has no users.
        roles, configure, write, read: see docs/permissions.md.
        csrf_token: the token that browsers must send as `X-CSRF-Token` with every request except GET.
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
    """Return the connected user and its permissions."""
    login = await visit.broker.identity()
    return Who(
        visit.user or login.user, login.instance, login.roles, login.configure, login.write, login.read,
        visit.site.settings.read_only, visit.visitor.token,
    )  # fmt: skip
