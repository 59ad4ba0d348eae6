"""Errors of the API, all in one form."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from ..error_reports import Answered, Fault

_MEANINGS = {
    400: "The body is not JSON.",
    401: "A login is needed.",
    403: "A right or a role is missing; `values` has its name. Or the request is forged.",
    404: "There is no such queue, exchange, worker or message.",
    409: "It is not as the request expects.",
    413: "The request or the message is too large.",
    421: "The web UI is not served under this name.",
    422: "A parameter is not valid.",
    429: "A limit is reached: wait for the seconds in `Retry-After`.",
    500: "An error of the web UI; its number is in the log.",
    502: "The broker does not answer, or its store failed.",
    503: "The broker can't take this now: wait for the seconds in `Retry-After`.",
}


def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of responses with these statuses."""
    return {status: {"model": Fault, "description": _MEANINGS[status]} for status in statuses}


#: responses of every route
RESPONSES = described(401, 403, 404, 409, 421, 422, 429, 500, 502, 503)
#: further responses of a route with a body
BODY_RESPONSES = described(400, 413)


def error_json(_request: Request, said: Answered) -> Response:
    """Return an error as JSON."""
    return JSONResponse(asdict(said.fault), said.status, said.headers)
