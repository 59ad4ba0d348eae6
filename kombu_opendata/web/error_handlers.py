"""Error handlers of the web UI: each error becomes a page, or JSON below /api/v1."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import OpenDataError
from .error_reports import Fault, fault_of, invalid, not_served, unforeseen

log = logging.getLogger(__name__)

#: makes the response of a request and its error
Answer = Callable[[Request, Fault], Response]
_FIELDS = ("code", "message", "values", "what_to_do")


def error_json(_request: Request, fault: Fault) -> Response:
    """Return an error as JSON."""
    return JSONResponse({name: getattr(fault, name) for name in _FIELDS}, fault.status, fault.headers)


def answer_errors(app: FastAPI, answer: Answer) -> None:
    """Register handlers for all errors of an app."""

    def broker_error(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, OpenDataError)
        return answer(request, fault_of(exc))

    def invalid_parameters(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, RequestValidationError)
        return answer(request, invalid(list(exc.errors())))

    def http_error(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        response = answer(request, not_served(exc.status_code, str(exc.detail)))
        response.headers.update(exc.headers or {})
        return response

    app.add_exception_handler(OpenDataError, broker_error)
    app.add_exception_handler(RequestValidationError, invalid_parameters)
    app.add_exception_handler(HTTPException, http_error)
    app.add_middleware(Unforeseen, answer=answer)


class Unforeseen:
    """Middleware that answers an unforeseen error with a number, under which the log has its traceback."""

    def __init__(self, app: ASGIApp, answer: Answer) -> None:
        self._app = app
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = False

        async def noted(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception:
            number = secrets.token_hex(4)
            log.exception("error %s: %s %s", number, scope["method"], scope["path"])
            if began:
                raise
            await self._answer(Request(scope, receive), unforeseen(number))(scope, receive, send)
