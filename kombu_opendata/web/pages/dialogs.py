"""Dialogs of actions: confirm with a preview, execute, and show the result."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import ValidationError

from ...errors import OpenDataError
from ..actions.action import Action, ActionOutcome, Parameters, Preview
from ..actions.all_actions import ACTIONS
from ..perform import begin, perform, preview
from ..visit import AVisit, Visit
from .forms import Items, faults_of, form_fields, parameters_of
from .jobs import job_notice
from .view import frame

router = APIRouter(include_in_schema=False)
#: field in which the user types a value again to confirm
_TYPED = "typed_again"
#: pydantic's problems of a field without a value or with an empty text
_NOT_FILLED_IN = ("missing", "string_too_short")


@router.get("/actions/{name}")
async def ask(visit: AVisit, name: str, request: Request) -> Response:
    """Return the dialog with a preview of the action."""
    return await _dialog(visit, _action(name), list(request.query_params.multi_items()), [])


@router.post("/actions/{name}")
async def act(visit: AVisit, name: str, request: Request) -> Response:
    """Execute the action; return a notice, or the dialog with the errors."""
    action = _action(name)
    async with request.form(max_files=0, max_fields=2000) as form:
        items = [(key, str(value)) for key, value in form.multi_items()]
    if any(key == "preview" for key, _value in items):
        return await _dialog(visit, action, items, [])
    typed = next((value for key, value in items if key == _TYPED), "")
    try:
        parameters = _read(action, items)
        if action.typed and typed != getattr(parameters, action.typed):
            return await _dialog(visit, action, items, [f"Type {getattr(parameters, action.typed)} to confirm."])
        if action.is_long:
            job = await begin(visit, action, parameters)
            if job.state == "failed":
                return await _dialog(visit, action, items, [job.error])
            return job_notice(visit, job, is_new=True)
        outcome = await perform(visit, action, parameters)
    except ValidationError as exc:
        return await _dialog(visit, action, items, faults_of(action.parameters, exc))
    except OpenDataError as exc:
        return await _dialog(visit, action, items, [str(exc)])
    return _notice(visit, outcome)


def _action(name: str) -> Action[Any]:
    if name not in ACTIONS:
        raise HTTPException(404, f"there is no action {name}")
    return ACTIONS[name]


def _read(action: Action[Any], items: Items) -> Parameters:
    known = [(key, value) for key, value in items if key in action.parameters.model_fields]
    parameters: Parameters = action.parameters.model_validate(parameters_of(action.parameters, known))
    return parameters


def _read_so_far(action: Action[Any], items: Items) -> Parameters | None:
    """Return the parameters of an incomplete form, with empty texts for missing fields.

    None if another value is invalid.
    """
    try:
        return _read(action, items)
    except ValidationError as exc:
        errors = exc.errors(include_url=False, include_input=False, include_context=False)
    if any(problem["type"] not in _NOT_FILLED_IN for problem in errors):
        return None
    missing = [str(problem["loc"][0]) for problem in errors]
    try:
        parameters = _read(action, [*items, *((name, "-") for name in missing)])
    except ValidationError:
        return None
    return parameters.model_copy(update=dict.fromkeys(missing, ""))


async def _dialog(visit: Visit, action: Action[Any], items: Items, faults: list[str]) -> Response:
    effect: Preview | None = None
    so_far = _read_so_far(action, items)
    try:
        effect = await preview(visit, action, so_far) if so_far is not None else None
    except OpenDataError as exc:
        faults = faults or [str(exc)]
    context = {
        "action": action,
        "fields": form_fields(action.parameters, action.given, items),
        "preview": effect,
        "faults": faults,
        "typed": next((value for key, value in items if key == action.typed), "") if action.typed else "",
    }
    return HTMLResponse(visit.site.renderer.page("dialog.html", frame(visit) | context))


def _notice(visit: Visit, done: ActionOutcome) -> Response:
    return HTMLResponse(visit.site.renderer.page("notice.html", frame(visit) | {"done": done}))
