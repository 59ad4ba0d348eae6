"""Authentication middleware: rejects forged requests and identifies the user before any route runs."""

from __future__ import annotations

from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...errors import OpenDataError
from ..error_reports import Answer, Fault, fault_of, not_served
from ..settings import WebSettings
from . import forgery
from .authentication import Visitor, Visitors

#: answered without a login and for every host name, because probes have neither
HEALTH = "/healthz"


class Guard:
    """Middleware that stores the :class:`.Visitor` in the request's state, or answers in place of the app."""

    def __init__(self, app: ASGIApp, settings: WebSettings, visitors: Visitors, answer: Answer) -> None:
        self._app = app
        self._settings = settings
        self._visitors = visitors
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = path_of(scope)
        if path == HEALTH:
            await PlainTextResponse("ok\n")(scope, receive, send)
            return
        request = Request(scope, receive)
        body: list[Message] = []
        reply: Response | Fault | None
        try:
            reply = self._foreign(request)
            if reply is None and not path.startswith("/static/"):
                reply = await self._enter(request, path, body)
        except OpenDataError as exc:
            reply = fault_of(exc)
        except HTTPException as exc:
            reply = not_served(exc.status_code, str(exc.detail))
        if isinstance(reply, Fault):
            reply = self._answer(request, reply)
        await (reply or self._app)(scope, _replayed(body, receive), send)

    def _foreign(self, request: Request) -> Fault | None:
        settings, headers = self._settings, request.headers
        host = headers.get("host", "")
        must_be_known = settings.hosts or (settings.is_open and not settings.proxies)
        is_host = forgery.parted(f"//{host}") is not None
        if not is_host or (must_be_known and not forgery.is_known_host(host, settings.hosts)):
            text = f"The web UI is not served under the name {host[:100]!r}."
            return Fault("unknown_host", text, {}, "Start it with --allowed-host and this name, if it is yours.", 421)
        if request.method not in forgery.SAFE and forgery.is_foreign(headers, settings.hosts):
            return _forged("Another site has sent this request.")
        return None

    async def _enter(self, request: Request, path: str, body: list[Message]) -> Response | Fault | None:
        visitor = await self._visitors.of(request, is_api=is_api(request.scope))
        request.state.visitor = visitor
        if visitor is None:
            return None if path == "/login" else self._login_needed(request, path)
        if request.method not in forgery.SAFE and not await self._has_token(request, visitor, body):
            return _forged("The request has no token, or that of an earlier login.")
        return None

    async def _has_token(self, request: Request, visitor: Visitor, body: list[Message]) -> bool:
        if not visitor.is_ambient and not forgery.is_of_browser(request.headers):
            return True
        is_given = self._visitors.tokens.is_given
        if is_given(visitor.token, request.headers, b""):
            return True
        while not body or body[-1].get("more_body"):
            body.append(await request.receive())
        try:
            return is_given(visitor.token, request.headers, b"".join(part.get("body", b"") for part in body))
        except ValueError as exc:
            raise HTTPException(413, f"a form may have {forgery.MAX_FIELDS:,} fields at most") from exc

    def _login_needed(self, request: Request, path: str) -> Response | Fault:
        login = f"{request.scope.get('root_path', '')}/login"
        if is_api(request.scope) or self._settings.proxies and self._settings.user_header in request.headers:
            # requests a login from programs; browsers would open a window for it
            headers = {} if "sec-fetch-mode" in request.headers else {"WWW-Authenticate": 'Basic realm="broker"'}
            return Fault("login_needed", "You are not logged in.", {}, "Log in.", 401, headers)
        query = f"?{request.url.query}" if request.url.query else ""
        login_with_next = f"{login}?next={quote(path.lstrip('/') + query, safe='')}"
        if "hx-request" in request.headers or request.query_params.get("live"):
            return Response(status_code=401, headers={"HX-Redirect": login})
        return RedirectResponse(login_with_next if request.method == "GET" else login, 303)


def path_of(scope: Scope) -> str:
    """Return the path of a request below the root path."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def is_api(scope: Scope) -> bool:
    """Return True if the request is for the JSON API."""
    return path_of(scope).startswith("/api/")


def _forged(text: str) -> Fault:
    return Fault("forged_request", text, {}, "Reload the web UI, then try again.", 403)


def _replayed(body: list[Message], receive: Receive) -> Receive:
    """Return a receive function that yields the messages read so far, then the others."""

    async def next_message() -> Message:
        return body.pop(0) if body else await receive()

    return next_message
