"""Errors of requests: HTTP status, values and advice; handlers that return each as a page, or as JSON below /api/v1."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, cast

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import errors as e
from ..json_values import plain

log = logging.getLogger(__name__)
E = TypeVar("E", bound=Exception)

_FIX = "Fix the request: the same one will fail again."
#: HTTP status and advice; the first class that matches an error decides
_KINDS: tuple[tuple[type[e.OpenDataError], int, str], ...] = (
    (e.TooManyLogins, 429, "Wait, then try the same again."),
    (e.RetryLater, 503, "Wait, then try the same again: nothing was stored."),
    (e.StartError, 502, "The broker can't be started: fix its configuration, then try again."),
    (e.ConnectionLost, 502, "Check that the broker runs. The web UI reconnects."),
    (e.StoreError, 502, "The broker's store failed: see the broker's log."),
    (e.VersionMismatch, 502, "Update the older one of the broker and the web UI."),
    (e.NotFound, 404, "It may have been deleted. Refresh the list."),
    (e.InstanceNotFound, 404, "Name an instance that the broker has."),
    (e.AccessRefused, 403, "Ask an administrator of the broker for this right."),
    (e.PreconditionFailed, 409, "Refresh the view, then try again."),
    (e.StaleLease, 409, "Refresh the view: another consumer has the message, or it was settled."),
    (e.LeaseHeld, 409, "Let the holder settle the message, or release it."),
    (e.KeyReused, 409, "Use another idempotency key."),
    (e.LimitExceeded, 429, "Have the limit raised, or use less."),
    (e.MessageTooLarge, 413, "Send a smaller message."),
    (e.RequestError, 422, _FIX),
)
_ELSE = 500, "See the log of the web UI."
#: pydantic's type of a problem, or a prefix of it, and the sentence about the parameter
_PROBLEMS = (
    ("missing", "is missing."),
    ("string_too_short", "is missing."),
    ("too_short", "is missing."),
    ("int_", "must be a whole number."),
    ("float_", "must be a number."),
    ("bool_", "must be true or false."),
    ("datetime_", "must be a time, such as 2026-11-26T14:00:00Z."),
    ("greater_than_equal", "must be at least {ge:,.15g}."),
    ("greater_than", "must be more than {gt:,.15g}."),
    ("less_than_equal", "must be at most {le:,.15g}."),
    ("string_too_long", "may have at most {max_length:,} characters."),
    ("too_long", "may have at most {max_length:,} entries."),
    ("literal_error", "must be one of {expected}."),
    ("json_", "must be JSON."),
    ("dict_type", "must be a JSON object."),
    ("extra_forbidden", "is not a parameter. Check its spelling."),
)


@dataclass(frozen=True)
class Fault:
    """An error of a request.

    Attributes:
        code: the kind of error, such as `not_found`; see docs/web-api.md.
        message: what is wrong, for people.
        values: the objects concerned, such as `queue` or `message_id`.
        what_to_do: advice for people.
    """

    code: str
    message: str
    values: dict[str, Any]
    what_to_do: str
    status: Annotated[int, Field(exclude=True)]
    headers: Annotated[dict[str, str], Field(exclude=True)] = field(default_factory=dict)


def fault_of(exc: e.OpenDataError) -> Fault:
    """Return the report of an error of the broker or its client."""
    status, advice = next(((status, advice) for cls, status, advice in _KINDS if isinstance(exc, cls)), _ELSE)
    values = {name: plain(value) for name, value in exc.values.items()}
    headers = {}
    if status in (429, 502, 503):
        seconds = exc.values.get("seconds")
        wait = min(max(math.ceil(seconds), 1), 60) if isinstance(seconds, (int, float)) else 2
        headers["Retry-After"] = str(wait)
    return Fault(e.wire_code(exc), exc.text or str(exc), values, advice, status, headers)


def not_served(status: int, text: str, headers: Mapping[str, str] | None = None) -> Fault:
    """Return the report of an address or a method that is not served."""
    code = {404: "no_such_address", 405: "method_not_allowed"}.get(status, f"http_{status}")
    advice = "See the list of addresses: /api/v1/openapi.json." if status in (404, 405) else _FIX
    return Fault(code, text, {}, advice, status, dict(headers or {}))


def invalid(problems: list[dict[str, Any]]) -> Fault:
    """Return the report of invalid parameters."""
    texts = [sentence(_name_of(problem["loc"]), problem) for problem in problems]
    values = {"problems": [{"where": list(map(str, entry["loc"])), "message": entry["msg"]} for entry in problems]}
    return Fault("bad_request", " ".join(texts), values, _FIX, 422)


def unforeseen(number: str) -> Fault:
    """Return the report of an internal error of the web UI; its number is in the log."""
    text, advice = f"The web UI has failed: error {number}.", f"Look for {number} in the log of the web UI."
    return Fault("internal", text, {"number": number}, advice, 500)


def sentence(name: str, problem: Mapping[str, Any]) -> str:
    """Return pydantic's problem with a parameter as a sentence that begins with the parameter's name."""
    for kind, text in _PROBLEMS:
        if problem["type"].startswith(kind):
            return f"{name} {text.format(**problem.get('ctx', {}))}"
    return f"{name}: {problem['msg'].removeprefix('Value error, ')}."


def _name_of(location: Sequence[Any]) -> str:
    """Return the name of a parameter of an address, or of a field of a body."""
    name = ".".join(map(str, location[1:]))
    return f"The parameter {name}" if location[0] in ("query", "path") else name or "The body"


# ---------------------------------------------------------------------- descriptions for OpenAPI
_MEANINGS = {
    400: "The body is not JSON.",
    401: "A login is needed.",
    403: "A right or a role is missing; `values` has its name. Or the request is forged.",
    404: "There is no such queue, exchange, worker or message.",
    409: "The state is not that of the request.",
    413: "The request or the message is too large.",
    421: "The web UI is not served under this name.",
    422: "A parameter is not valid.",
    429: "A limit is reached: wait for the seconds in `Retry-After`.",
    500: "An error of the web UI; its number is in the log.",
    502: "The broker does not answer, or its store failed.",
    503: "The broker can't accept this now: wait for the seconds in `Retry-After`.",
}


def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of responses with these statuses."""
    return {status: {"model": Fault, "description": _MEANINGS[status]} for status in statuses}


#: responses of every route
RESPONSES = described(401, 403, 404, 409, 421, 422, 429, 500, 502, 503)
#: further responses of a route with a body
BODY_RESPONSES = described(400, 413)


# ---------------------------------------------------------------------- handlers
#: makes the response of a request and its error
Answer = Callable[[Request, Fault], Response]
_FIELDS = ("code", "message", "values", "what_to_do")


def error_json(_request: Request, fault: Fault) -> Response:
    """Return an error as JSON."""
    return JSONResponse({name: getattr(fault, name) for name in _FIELDS}, fault.status, fault.headers)


def answer_errors(app: FastAPI, answer: Answer) -> None:
    """Register handlers for all errors of an app."""

    def handle(kind: type[E], fault: Callable[[E], Fault]) -> None:
        app.add_exception_handler(kind, lambda request, exc: answer(request, fault(cast(E, exc))))

    handle(e.OpenDataError, fault_of)
    handle(RequestValidationError, lambda exc: invalid(list(exc.errors())))
    handle(HTTPException, lambda exc: not_served(exc.status_code, str(exc.detail), exc.headers))
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
