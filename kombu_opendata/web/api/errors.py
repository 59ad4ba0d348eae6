"""What the API says of errors: one form for all of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from ..faults import Answered, Fault

_MEANINGS = {
    403: "A right or a role is missing; `values` has its name.",
    404: "There is no such queue, exchange, worker or message.",
    409: "It is not as the request expects.",
    422: "A parameter is not valid.",
    500: "A mistake of the page; its number is in the log.",
    502: "The broker does not answer, or its store failed.",
    503: "The broker can't take this now: wait for as long as `Retry-After` says.",
}
#: for the description of every route
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": Fault, "description": meaning} for status, meaning in _MEANINGS.items()
}


def error_json(_request: Request, said: Answered) -> Response:
    """An error as JSON."""
    return JSONResponse(asdict(said.fault), said.status, said.headers)
