"""Login, logout, and the current user."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from ...errors import AccessRefused, OpenDataError, TooManyLogins
from ..rendering import link
from ..reports.wire_structs import copied
from ..request_context import AVisit, Site
from .view import Views, frame_of

VIEWS = Views("session")
_FORM_BYTES = 16 << 10
_WRONG = "The name or the password is wrong."


@dataclass(frozen=True)
class Who:
    """The user of the request, with its permissions.

    Attributes:
        user: empty if the broker has no users.
        roles, configure, write, read: see docs/permissions.md.
        csrf_token: the token that browsers must send as `X-CSRF-Token` with every request except GET.
    """

    user: str
    instance: str
    roles: list[str]
    configure: str
    write: str
    read: str
    read_only: bool
    csrf_token: str


@VIEWS.api.get("/session")
async def get_session(visit: AVisit) -> Who:
    """Return the connected user and its permissions."""
    login = await visit.broker.identity()
    own = {"read_only": visit.site.settings.read_only, "csrf_token": visit.visitor.token}
    return copied(Who, login, user=visit.user or login.user, **own)


@VIEWS.pages.get("/login")
async def show_form(request: Request, next: str = "") -> Response:
    """Return the login form; a user that needs no login is redirected."""
    if request.state.visitor is not None:
        return _onward(request, next)
    return _form(request, next)


@VIEWS.pages.post("/login")
async def log_in(request: Request) -> Response:
    """Begin a session."""
    if int(request.headers.get("content-length") or _FORM_BYTES + 1) > _FORM_BYTES:
        return _form(request, "", "The form is too large.", 413)
    async with request.form(max_files=0, max_fields=10) as form:
        user, secret, onward = (str(form.get(name, "")) for name in ("user", "password", "next"))
    site: Site = request.app.state.site
    try:
        token = await site.visitors.log_in(request, user, secret)
    except TooManyLogins as exc:
        answer = _form(request, onward, f"{exc.text}.", 429)
        answer.headers["Retry-After"] = str(math.ceil(exc.values.get("seconds", 1)))
        return answer
    except AccessRefused as exc:
        reason = exc.text if exc.values.get("kind") == "instance" or "no users" in exc.text else _WRONG
        return _form(request, onward, reason, 403)
    except OpenDataError as exc:
        return _form(request, onward, f"You can't log in now: {exc}", 503)
    answer = _onward(request, onward)
    settings = site.settings
    answer.set_cookie(
        site.visitors.cookie,
        token,
        path=_root(request) + "/",
        secure=settings.is_secure,
        httponly=True,
        samesite="strict",
    )
    return answer


@VIEWS.pages.post("/logout")
async def log_out(request: Request) -> Response:
    """End the session."""
    site: Site = request.app.state.site
    site.visitors.log_out(request)
    answer = RedirectResponse(link(_root(request), "login"), 303)
    answer.delete_cookie(site.visitors.cookie, path=_root(request) + "/")
    return answer


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", ""))


def _onward(request: Request, path: str) -> Response:
    """Redirect to a view of the web UI, never to another site."""
    path = path.lstrip("/\\") if path.isprintable() else ""
    return RedirectResponse(f"{_root(request)}/{path}", 303)


def _form(request: Request, onward: str, fault: str = "", status: int = 200) -> Response:
    site: Site = request.app.state.site
    context = frame_of(request, site, "") | {"next": onward, "wrong": fault, "live_url": ""}
    return HTMLResponse(site.renderer.page("login.html", context), status)
