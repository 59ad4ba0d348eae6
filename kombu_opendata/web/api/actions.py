"""Everything that can be done, one route for each action."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter

from ..actions.action import Action, Done, Preview
from ..actions.all_actions import ACTIONS
from ..perform import perform, preview
from ..visit import AVisit

router = APIRouter(prefix="/actions", tags=["actions"])


def _routes(action: Action[Any]) -> tuple[Callable[..., Awaitable[Done]], Callable[..., Awaitable[Preview]]]:
    """The handlers of one action; its parameters are the body."""

    async def do(visit: AVisit, parameters: Any) -> Done:
        return await perform(visit, action, parameters)

    async def look(visit: AVisit, parameters: Any) -> Preview:
        return await preview(visit, action, parameters)

    do.__annotations__["parameters"] = look.__annotations__["parameters"] = action.parameters
    return do, look


for _name, _action in ACTIONS.items():
    _do, _look = _routes(_action)
    _words = _name.replace("-", "_")
    router.add_api_route(f"/{_name}", _do, methods=["POST"], summary=_action.title, operation_id=_words)
    router.add_api_route(
        f"/{_name}/preview", _look, methods=["POST"], summary=f"{_action.title}: what it would concern",
        operation_id=f"preview_{_words}",
    )  # fmt: skip
