"""Error page."""

from __future__ import annotations

from fastapi import Request, Response
from fastapi.responses import HTMLResponse

from ..access.forgery import parted
from ..error_reports import Answered
from ..visit import Site
from .view import error_context, frame_of


def error_page(request: Request, said: Answered) -> Response:
    """Return a page that describes the error and links to the previous view."""
    site: Site = request.app.state.site
    context = frame_of(request, site, "") | error_context(said) | {"back": _came_from(request), "live_url": ""}
    return HTMLResponse(site.renderer.page("error.html", context), said.status, said.headers)


def _came_from(request: Request) -> str:
    """Return the view of this site with the link or form of the request; empty if there is none."""
    referer = parted(request.headers.get("referer", ""))
    if referer is None or referer.netloc != request.url.netloc or referer.path == request.url.path:
        return ""
    return referer.path + (f"?{referer.query}" if referer.query else "")
