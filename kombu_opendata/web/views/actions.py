"""Actions: dialogs that confirm with a preview and show the result, routes of the API, execution, background jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import HTTPException, Request, Response
from pydantic import ValidationError

from ...errors import AccessRefused, NotFound, OpenDataError, PreconditionFailed
from ..access import audit
from ..actions import ACTIONS
from ..actions.action import Action, ActionOutcome, Parameters, Preview, Report
from ..error_reports import BODY_RESPONSES, described
from ..jobs import BackgroundJob
from ..request_context import AVisit, Visit
from .forms import Items, faults_of, form_fields, parameters_of
from .view import Views, frame, html

VIEWS, JOBS = Views("actions"), Views("jobs")
#: field in which the user types a value again to confirm
_TYPED = "typed_again"
#: pydantic's problems of a field without a value or with an empty text
_NOT_FILLED_IN = ("missing", "string_too_short")


@VIEWS.pages.get("/actions/{name}")
async def show_dialog(visit: AVisit, name: str, request: Request) -> Response:
    """Return the dialog with a preview of the action."""
    return await _dialog(visit, _action(name), list(request.query_params.multi_items()), [])


@VIEWS.pages.post("/actions/{name}")
async def act(visit: AVisit, name: str, request: Request) -> Response:
    """Execute the action; return a notice, or the dialog with the errors."""
    action = _action(name)
    async with request.form(max_files=0, max_fields=2000) as form:
        items = [(key, str(value)) for key, value in form.multi_items()]
    typed = next((value for key, value in items if key == _TYPED), "")
    try:
        parameters = _read(action, items)
        if action.typed and typed != getattr(parameters, action.typed):
            return await _dialog(visit, action, items, [f"Type {getattr(parameters, action.typed)} to confirm."])
        if action.is_long:
            job = await begin(visit, action, parameters)
            if job.state == "failed":
                return await _dialog(visit, action, items, [job.error])
            return html(visit, "job_notice.html", frame(visit) | {"report": job, "is_new": True})
        outcome = await perform(visit, action, parameters)
    except ValidationError as exc:
        return await _dialog(visit, action, items, faults_of(action.parameters, exc))
    except OpenDataError as exc:
        return await _dialog(visit, action, items, [str(exc)])
    return html(visit, "notice.html", frame(visit) | {"done": outcome})


def _action(name: str) -> Action:
    action = ACTIONS.get(name)
    if action is None:
        raise HTTPException(404, f"there is no action {name}")
    return action


def _read(action: Action, items: Items) -> Parameters:
    known = [(key, value) for key, value in items if key in action.parameters.model_fields]
    parameters: Parameters = action.parameters.model_validate(parameters_of(action.parameters, known))
    return parameters


def _read_so_far(action: Action, items: Items) -> Parameters | None:
    """Return the parameters of an incomplete form, with empty texts for missing fields; None if a value is invalid."""
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


async def _dialog(visit: Visit, action: Action, items: Items, faults: list[str]) -> Response:
    effect: Preview | None = None
    so_far = _read_so_far(action, items)
    try:
        effect = await so_far.preview(visit.broker) if so_far is not None else None
    except OpenDataError as exc:
        faults = faults or [str(exc)]
    context = {
        "action": action,
        "fields": form_fields(action.parameters, action.fixed, items),
        "preview": effect,
        "faults": faults,
        "typed": next((value for key, value in items if key == action.typed), "") if action.typed else "",
    }
    return html(visit, "dialog.html", frame(visit) | context)


# ---------------------------------------------------------------------- execution
async def perform(
    visit: Visit, action: Action, parameters: Parameters, report: Report = lambda _progress: None
) -> ActionOutcome:
    """Execute an action and log it.

    Raises:
        AccessRefused: the web UI is read-only.
        PreconditionFailed: there is nothing left to act on.
        OpenDataError: the broker refuses the action or is unavailable.
    """
    if visit.site.settings.read_only:
        raise AccessRefused("the web UI is read-only: it was started with --read-only")
    effect = await parameters.preview(visit.broker)
    if not effect.is_possible:
        raise PreconditionFailed(effect.text)
    target = audit.subject(parameters.model_dump())
    try:
        outcome = await parameters.perform_in_steps(visit.broker, report)
    except OpenDataError as exc:
        audit.record(visit.user, visit.visitor.address, "failed: %s%s: %s", action.name, target, exc.text, is_bad=True)
        raise
    except asyncio.CancelledError:
        audit.record(visit.user, visit.visitor.address, "stopped: %s%s", action.name, target)
        raise
    finally:
        visit.broker.forget_answers()
    counts = ", ".join(f"{count} {name}" for name, count in outcome.counts.items())
    audit.record(visit.user, visit.visitor.address, "did: %s%s: %s", action.name, target, counts or "done")
    return outcome


async def begin(visit: Visit, action: Action, parameters: Parameters, *, patience: float = 1.0) -> BackgroundJob:
    """Execute an action in the background; wait up to ``patience`` seconds for its end.

    Raises LimitExceeded if this user has too many running jobs.
    """

    async def work(report: Report) -> ActionOutcome:
        return await perform(visit, action, parameters, report)

    subject = parameters.model_dump(mode="json", exclude_defaults=True)
    job = visit.site.jobs.start(visit.user, action.title, action.name, subject, work)
    if job.task is not None:
        await asyncio.wait({job.task}, timeout=patience)
    return job


# ---------------------------------------------------------------------- the API
def _add_routes(name: str, action: Action) -> None:
    """Add the routes of an action, whose parameters are the body."""

    async def do(visit: AVisit, parameters: Any) -> ActionOutcome:
        return await perform(visit, action, parameters)

    async def look(visit: AVisit, parameters: Any) -> Preview:
        effect: Preview = await parameters.preview(visit.broker)
        return effect

    async def start(visit: AVisit, parameters: Any) -> BackgroundJob:
        return await begin(visit, action, parameters, patience=0)

    def add(ending: str, summary: str, handler: Callable[..., Awaitable[Any]]) -> None:
        handler.__annotations__["parameters"] = action.parameters
        operation_id = f"{ending[1:] or 'do'}_{name}".replace("-", "_")
        VIEWS.api.add_api_route(
            f"/actions/{name}{ending}",
            handler,
            methods=["POST"],
            summary=summary,
            operation_id=operation_id,
            responses=BODY_RESPONSES,
        )

    add("", action.title, do)
    add("/preview", f"{action.title}: what it would concern", look)
    if action.is_long:
        add("/start", f"{action.title}, in the background", start)


for _name, _action_of_name in ACTIONS.items():
    _add_routes(_name, _action_of_name)


# ---------------------------------------------------------------------- background jobs
@JOBS.view("/jobs", "jobs.html")
async def list_jobs(visit: AVisit) -> list[BackgroundJob]:
    """Return your background jobs of the last hour, the newest first."""
    return visit.site.jobs.of(visit.user)


@JOBS.view("/jobs/{id}", "job_notice.html")
async def get_job(visit: AVisit, id: int) -> BackgroundJob:
    """Return one of your background jobs."""
    job = visit.site.jobs.get(visit.user, id)
    if job is None:
        raise NotFound(f"there is no job {id} (any more)", job=id)
    return job


@JOBS.view("/jobs/{id}/cancel", methods=["POST"], responses=described(413))
async def cancel_job(visit: AVisit, id: int) -> BackgroundJob:
    """Cancel a job after its current step; its effects so far remain."""
    job = await get_job(visit, id)
    visit.site.jobs.cancel(job)
    return job
