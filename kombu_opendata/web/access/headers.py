"""Security headers of every response, and limits of request bodies.

Browsers run only scripts of the web UI, do not show it in frames of other sites, and store only static files.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...queue_client.body_codec import json_elements

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
#: limit for a JSON body; each element takes about a hundred bytes of memory
_MOST_ELEMENTS = 250_000
#: bodies that no route reads as JSON
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
#: for files whose address contains the version
_FOREVER = "public, max-age=31536000, immutable"


class SecurityHeaders:
    """Middleware that adds the security headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        is_file = path.startswith("/static/")

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                if not is_file:
                    headers["Cache-Control"] = "no-store"
                elif b"v=" in scope["query_string"] and message["status"] == 200:
                    headers["Cache-Control"] = _FOREVER
            await send(message)

        await self._app(scope, receive, answer)


class BodyLimit:
    """Limits for the bytes of a request's body, even of unannounced length, and for the elements of a JSON body."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        came = 0
        parts: list[bytes] = []
        # the type as the routes read it: the first one, without parameters
        content_type = Headers(scope=scope).get("content-type", "") if scope["type"] == "http" else ""
        is_form = content_type.partition(";")[0].strip().lower() in _FORMS

        async def limited() -> Message:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came > self._most:
                raise HTTPException(413, f"a request may have {self._most:,} bytes at most")
            if not is_form:  # the routes may read it as JSON
                parts.append(message.get("body", b""))
                if not message.get("more_body") and json_elements(b"".join(parts), _MOST_ELEMENTS) > _MOST_ELEMENTS:
                    raise HTTPException(413, f"a request may have {_MOST_ELEMENTS:,} elements at most")
            return message

        await self._app(scope, limited, send)
