"""Routes of single messages and tasks."""

from __future__ import annotations

from fastapi import APIRouter, Response

from ..message_file import body_file
from ..reports.message import MessageReport, message_report
from ..reports.task import TaskView, task_report
from ..visit import AVisit

router = APIRouter(tags=["messages"])


@router.get("/message")
async def get_message(visit: AVisit, id: int) -> MessageReport:
    """Return a message, or its history if it is no longer stored."""
    return await message_report(visit.broker, visit.site.masking, id)


@router.get("/message/body", response_class=Response, responses={200: {"content": {"application/octet-stream": {}}}})
async def get_body(visit: AVisit, id: int) -> Response:
    """Return the body of a message as it is stored."""
    return await body_file(visit, id)


@router.get("/task")
async def get_task(visit: AVisit, id: str) -> TaskView:
    """Return a task by Celery's id, with its attempts, its result, and its canvas."""
    return await task_report(visit.broker, visit.site.masking, id)
