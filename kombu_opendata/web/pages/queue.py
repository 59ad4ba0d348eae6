"""View of one queue, and the checks of its filter box."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse

from ...errors import OpenDataError
from ..reports.filters import check_filter, explain
from ..reports.identified import id_of
from ..reports.queue import TABS, queue_failures, queue_messages, queue_report
from ..visit import AVisit
from .view import Shown, frame, view

router = APIRouter(include_in_schema=False)


@view(router, "/queue", "queue.html")
async def show(visit: AVisit, name: str, tab: str = "ready", where: str = "", after: str = "") -> Shown:
    """Return a queue and a page of one of its tabs."""
    tab = tab if tab in TABS else "ready"
    check = check_filter(where)
    context: Shown = {"queue": await queue_report(visit.broker, name), "tab": tab, "where": where, "check": check}
    if not check.is_valid:
        return context | {"messages": None, "failures": None, "next": None}
    if tab == "failed":
        failures = await queue_failures(visit.broker, visit.site.masking, name, where=where, after=after or None)
        return context | {"messages": None, "failures": failures.items, "next": failures.next}
    messages = await queue_messages(visit.broker, name, tab, where=where, after=id_of(after))
    return context | {"messages": messages, "failures": None, "next": messages.after}


@router.get("/filters/check")
async def check(visit: AVisit, where: str = "") -> Response:
    """Return the check of a filter, as a fragment."""
    context = frame(visit) | {"check": check_filter(where), "where": where}
    return HTMLResponse(visit.site.renderer.page("filter_check.html", context))


@router.get("/filters/explain")
async def explained(visit: AVisit, id: str = "", queue: str = "", where: str = "") -> Response:
    """Return the explanation of a match, as a fragment."""
    context = frame(visit) | {"explained": None, "fault": ""}
    masking = visit.site.masking
    try:
        if (message := id_of(id)) is None:
            context["fault"] = "Give the number of a message."
        else:
            context["explained"] = await explain(visit.broker, masking, queue=queue, id=message, where=where)
    except OpenDataError as exc:
        context["fault"] = str(exc)
    return HTMLResponse(visit.site.renderer.page("filter_explained.html", context))
