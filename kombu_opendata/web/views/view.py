"""Declarations of views: each adds a page, its stream of changes, and its route of the JSON API.

A view is a coroutine that returns a report. The API returns it as JSON; the page renders it by a template. With
``live=1``, the page's address returns a stream of server-sent events with the block ``content``, whenever it changes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial, wraps
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, StreamingResponse

from ...errors import OpenDataError
from ..access.authentication import Visitor
from ..access.forgery import parted
from ..actions import is_offered
from ..error_reports import Fault, fault_of
from ..live_updates import away, event, updates
from ..rendering import link
from ..request_context import Site, Visit
from ..user_clients import note_ages

Context = dict[str, Any]
ContextMaker = Callable[..., Awaitable[Context]]
F = TypeVar("F", bound=Callable[..., Awaitable[Any]])
_TITLES = {
    403: "Not allowed", 404: "Not found", 409: "Conflict", 422: "Invalid request",
    500: "Internal error", 502: "Not available", 503: "Not available",
}  # fmt: skip
_EVENTS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class Views:
    """The views of one subject: their pages, and their routes of the JSON API, which have the tag of the subject."""

    def __init__(self, tag: str) -> None:
        self.pages = APIRouter(include_in_schema=False)
        self.api = APIRouter(tags=[tag])

    def view(
        self, path: str, template: str = "", *, api: str = "", page: ContextMaker | None = None, **options: Any
    ) -> Callable[[F], F]:
        """Declare a view: a coroutine with a parameter ``visit``, and others that the query provides.

        Args:
            path: the address of the page.
            template: renders the report, as ``report``. Without one, the page's address returns the same as the API.
            api: the address in the API, if it is another one.
            page: returns the context of the template, if that needs more than the report, or the page has other
                parameters.
            options: further options of the routes, as FastAPI names them.
        """

        def declare(report: F) -> F:
            self.api.add_api_route(api or path, report, **options)
            if template:
                handler = _page(template, page or _context_of(report))
                self.pages.add_api_route(path, handler, response_class=HTMLResponse)
            else:
                self.pages.add_api_route(path, report, **options)
            return report

        return declare


def _context_of(report: Callable[..., Awaitable[Any]]) -> ContextMaker:
    @wraps(report)
    async def context(**parameters: Any) -> Context:
        return {"report": await report(**parameters)}

    return context


def _page(template: str, page: ContextMaker) -> Callable[..., Awaitable[Response]]:
    @wraps(page)
    async def answer(*, visit: Visit, **parameters: Any) -> Response:
        async def context() -> Context:
            visit.check()
            return frame(visit) | {"parameters": parameters} | await page(visit=visit, **parameters)

        if visit.request.query_params.get("live"):
            return StreamingResponse(_events(visit, template, context), 200, _EVENTS, "text/event-stream")
        try:
            return html(visit, template, await context())
        except OpenDataError as exc:
            fault = fault_of(exc)
            if not _may_come_back(fault):
                raise
            page_context = frame(visit) | {"fault": str(exc)}
            return HTMLResponse(visit.site.renderer.page("unavailable.html", page_context), 503, fault.headers)

    answer.__annotations__["return"] = Response
    return answer


def _events(visit: Visit, template: str, context: Callable[[], Awaitable[Context]]) -> AsyncIterator[str]:
    """Return events with the changing part, one for each change."""

    async def render() -> tuple[str, float]:
        ages = note_ages()
        content = visit.site.renderer.block(template, "content", await context())
        return content, max(ages)

    def error_event(exc: OpenDataError) -> str:
        """Return the event of an error: above the changing part, or in place of it."""
        fault = fault_of(exc)
        if _may_come_back(fault):
            return away(str(exc))
        return event(visit.site.renderer.block("error.html", "banner", frame(visit) | _error_context(fault)))

    return updates(render, error_event, visit.site.settings.refresh_seconds, visit.site.pace)


def html(visit: Visit, template: str, context: Context) -> Response:
    """Return a rendered template."""
    return HTMLResponse(visit.site.renderer.page(template, context))


def frame(visit: Visit) -> Context:
    """Return the context that every template needs."""
    return frame_of(visit.request, visit.site, visit.user)


def frame_of(request: Request, site: Site, user: str) -> Context:
    """Return the context that every template needs: links, the user, the address of live updates.

    ``link.offers`` returns True for the name of an action whose button is shown.
    """
    root = request.scope.get("root_path", "")
    path = request.url.path.removeprefix(root).lstrip("/")
    query = {name: value for name, value in request.query_params.multi_items() if name != "live"}
    visitor: Visitor | None = getattr(request.state, "visitor", None)
    links: Any = partial(link, root)  # macros get its attribute with it
    links.offers = lambda _action: False
    if visitor and not site.settings.read_only:
        links.offers = partial(is_offered, who=visitor.broker.who)

    def same(**changes: Any) -> str:
        return link(root, path, **query | changes)

    return {
        "link": links,
        "same": same,
        "live_url": same(live=1),
        "path": path,
        "user": user,
        "csrf_token": visitor.token if visitor else "",
        "has_session": visitor is not None and visitor.session is not None,
        "read_only": site.settings.read_only,
        "fault": "",
    }


# ---------------------------------------------------------------------- errors
def error_page(request: Request, fault: Fault) -> Response:
    """Return a page that describes the error and links to the previous view."""
    site: Site = request.app.state.site
    context = frame_of(request, site, "") | _error_context(fault) | {"back": _previous(request), "live_url": ""}
    return HTMLResponse(site.renderer.page("error.html", context), fault.status, fault.headers)


def _error_context(fault: Fault) -> Context:
    return {"report": fault, "title": _TITLES.get(fault.status, "Not served")}


def _may_come_back(fault: Fault) -> bool:
    """Return True if the page should wait for the broker."""
    return fault.status in (502, 503)


def _previous(request: Request) -> str:
    """Return the view of this site with the link or form of the request; empty if there is none."""
    referer = parted(request.headers.get("referer", ""))
    if referer is None or referer.netloc != request.url.netloc or referer.path == request.url.path:
        return ""
    return referer.path + (f"?{referer.query}" if referer.query else "")
