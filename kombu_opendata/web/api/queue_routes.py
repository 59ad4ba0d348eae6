"""Routes of queues, their messages, and filters."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter

from ..reports.filters import FilterCheck, MatchExplanation, check_filter, explain
from ..reports.message_rows import MessageRows, message_rows
from ..reports.overview import Overview, overview
from ..reports.queue import QueueReport, queue_report
from ..visit import AVisit

router = APIRouter(tags=["queues"])

State = Literal["available", "delayed", "in_flight", "running", "done", "archived_failed"]


@router.get("/queues")
async def list_queues(
    visit: AVisit, search: str = "", sort: str = "name", page: int = 1, control: bool = False
) -> Overview:
    """Return a page of queues, and the totals of all."""
    return await overview(visit.broker, search=search, sort=sort, page=page, control=control)


@router.get("/queue")
async def get_queue(visit: AVisit, name: str) -> QueueReport:
    """Return a queue with its metrics, bindings and consumers."""
    return await queue_report(visit.broker, name)


@router.get("/messages")
async def list_messages(
    visit: AVisit, queue: str, state: State = "available", where: str = "", after: int | None = None
) -> MessageRows:
    """Return a page of the messages of a queue in one state that match a filter; for failures, see ``/failures``."""
    return await message_rows(visit.broker, queue, state, where=where, after=after)


@router.get("/filters/check")
async def filter_is_valid(where: str = "") -> FilterCheck:
    """Check that a filter is valid."""
    return check_filter(where)


@router.get("/filters/explain")
async def explain_filter(visit: AVisit, id: int, queue: str = "", where: str = "") -> MatchExplanation:
    """Explain why a filter, or a queue's filter, matches a stored message or not."""
    return await explain(visit.broker, visit.site.masking, queue=queue, id=id, where=where)
