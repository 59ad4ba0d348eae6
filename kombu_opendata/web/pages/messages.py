"""Views of a message and of a task, the download of a body, and the search box of all views."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from ...errors import AccessRefused, MessageNotFound, NotFound, PreconditionFailed
from ..message_file import body_file
from ..rendering import link
from ..reports.identified import id_of
from ..reports.message import message_report
from ..reports.task import task_report
from ..visit import AVisit
from .view import Shown, view

router = APIRouter(include_in_schema=False)


@view(router, "/message", "message.html")
async def message(visit: AVisit, id: int) -> Shown:
    """Return a message by its id."""
    return {"message": await message_report(visit.broker, visit.site.masking, id)}


@view(router, "/task", "task.html")
async def task(visit: AVisit, id: str) -> Shown:
    """Return a task by Celery's id."""
    return {"task": await task_report(visit.broker, visit.site.masking, id)}


@router.get("/message/body")
async def body(visit: AVisit, id: int) -> Response:
    """Return the body as it is stored, as a file to save."""
    return await body_file(visit, id)


@router.get("/jump")
async def jump(visit: AVisit, to: str = "") -> Response:
    """Redirect to a queue by name, a message by id, or a task by Celery's id."""
    root = visit.request.scope.get("root_path", "")
    client = visit.broker.client
    to = to.strip()
    if id_of(to) is not None:
        return RedirectResponse(link(root, "message", id=to), 303)
    try:
        await client.task(to)
        return RedirectResponse(link(root, "task", id=to), 303)
    except (AccessRefused, MessageNotFound, PreconditionFailed):
        pass  # not a task, or this user may not search tasks
    try:
        await client.get_queue(to)
        return RedirectResponse(link(root, "queue", name=to), 303)
    except NotFound:
        return RedirectResponse(link(root, "", search=to), 303)
