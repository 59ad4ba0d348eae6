"""Routes of all actions: preview, execution, and execution in the background."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter

from ..actions.action import Action, ActionOutcome, Preview
from ..actions.all_actions import ACTIONS
from ..perform import begin, perform, preview
from ..visit import AVisit
from .errors import BODY_RESPONSES
from .job_routes import BackgroundJobReport, job_report

router = APIRouter(prefix="/actions", tags=["actions"])


def _add_routes(action: Action[Any]) -> None:
    """Add the routes of one action; its parameters are the body."""

    async def do(visit: AVisit, parameters: Any) -> ActionOutcome:
        return await perform(visit, action, parameters)

    async def look(visit: AVisit, parameters: Any) -> Preview:
        return await preview(visit, action, parameters)

    async def start(visit: AVisit, parameters: Any) -> BackgroundJobReport:
        return job_report(await begin(visit, action, parameters, patience=0))

    _add(action, "", action.title, do)
    _add(action, "/preview", f"{action.title}: what it would concern", look)
    if action.is_long:
        _add(action, "/start", f"{action.title}, in the background", start)


def _add(action: Action[Any], ending: str, summary: str, handler: Callable[..., Awaitable[Any]]) -> None:
    handler.__annotations__["parameters"] = action.parameters
    operation_id = f"{ending[1:] or 'do'}_{action.name}".replace("-", "_")
    router.add_api_route(
        f"/{action.name}{ending}", handler, methods=["POST"], summary=summary, operation_id=operation_id,
        responses=BODY_RESPONSES,
    )  # fmt: skip


for _action in ACTIONS.values():
    _add_routes(_action)
