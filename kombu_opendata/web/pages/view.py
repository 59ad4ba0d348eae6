"""Views: a page, and its changing part as a stream of events.

A view is a function that returns the context of its template. Its address returns the whole page; with ``live=1`` a
stream of server-sent events, each of which has the block ``content`` if it has changed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial, wraps
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, StreamingResponse

from ...errors import OpenDataError
from ..access.visitors import Visitor
from ..actions.all_actions import is_offered
from ..brokers import note_ages
from ..error_reports import Answered, answered
from ..live_updates import away, event, updates
from ..rendering import Links, link
from ..visit import Site, Visit

Shown = dict[str, Any]
_TITLES = {
    403: "Not allowed", 404: "Not found", 409: "Not as it is now", 422: "Invalid request",
    500: "Internal error", 502: "Not available", 503: "Not available",
}  # fmt: skip
_EVENTS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def view(router: APIRouter, path: str, template: str) -> Callable[[Callable[..., Awaitable[Shown]]], Any]:
    """Register a view: a coroutine with a parameter ``visit``, and others that the query provides."""

    def register(show: Callable[..., Awaitable[Shown]]) -> Any:
        @wraps(show)
        async def answer(*, visit: Visit, **given: Any) -> Response:
            async def context() -> Shown:
                visit.check()
                return frame(visit) | await show(visit=visit, **given)

            if visit.request.query_params.get("live"):
                return StreamingResponse(_events(visit, template, context), 200, _EVENTS, "text/event-stream")
            return await _page(visit, template, context)

        router.add_api_route(path, answer, methods=["GET"], response_class=HTMLResponse, include_in_schema=False)
        return show

    return register


def frame(visit: Visit) -> Shown:
    """Return the context that every template needs."""
    return frame_of(visit.request, visit.site, visit.user)


def frame_of(request: Request, site: Site, user: str) -> Shown:
    """Return the context that every template needs: links, the user, the address of live updates."""
    root = request.scope.get("root_path", "")
    query = [(name, value) for name, value in request.query_params.multi_items() if name != "live"]

    visitor: Visitor | None = getattr(request.state, "visitor", None)
    is_visible = partial(is_offered, who=visitor.broker.who) if visitor and not site.settings.read_only else _nothing

    def same(**changes: Any) -> str:
        return link(root, _relative(request.url.path, root), **dict(query) | changes)

    return {
        "link": Links(root, is_visible),
        "same": same,
        "live_url": same(live=1),
        "path": _relative(request.url.path, root),
        "user": user,
        "csrf_token": visitor.token if visitor else "",
        "has_session": visitor is not None and visitor.session is not None,
        "read_only": site.settings.read_only,
        "fault": "",
    }


def _nothing(_action: str) -> bool:
    return False


def _relative(path: str, root: str) -> str:
    return path.removeprefix(root).lstrip("/")


async def _page(visit: Visit, template: str, context: Callable[[], Awaitable[Shown]]) -> Response:
    try:
        return HTMLResponse(visit.site.renderer.page(template, await context()))
    except OpenDataError as exc:
        report = answered(exc)
        if not _may_come_back(report):
            raise
        page_context = frame(visit) | {"fault": str(exc)}
        return HTMLResponse(visit.site.renderer.page("unavailable.html", page_context), 503, report.headers)


def error_context(said: Answered) -> Shown:
    """Return the context of the error template."""
    return {"report": said.fault, "title": _TITLES.get(said.status, "Not served")}


def _may_come_back(said: Answered) -> bool:
    """Return True if the page should wait for the broker."""
    return said.status in (502, 503)


def _events(visit: Visit, template: str, context: Callable[[], Awaitable[Shown]]) -> AsyncIterator[str]:
    """Return events with the changing part, one for each change."""

    async def render() -> tuple[str, float]:
        ages = note_ages()
        content = visit.site.renderer.block(template, "content", await context())
        return content, max(ages)

    return updates(render, lambda exc: _told(visit, exc), visit.site.settings.refresh_seconds, visit.site.pace)


def _told(visit: Visit, exc: OpenDataError) -> str:
    """Return the event of an error: above the changing part, or in place of it."""
    report = answered(exc)
    if _may_come_back(report):
        return away(str(exc))
    return event(visit.site.renderer.block("error.html", "banner", frame(visit) | error_context(report)))
