"""What is said of an error, on pages and by the API: its HTTP status, its values, what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import (
    AccessRefused,
    ConnectionLost,
    InstanceNotFound,
    KeyReused,
    LeaseHeld,
    LimitExceeded,
    MessageTooLarge,
    NotFound,
    OpenDataError,
    PreconditionFailed,
    RequestError,
    RetryLater,
    StaleLease,
    StartError,
    StoreError,
    TooManyLogins,
    VersionMismatch,
    wire_code,
)
from ..json_values import plain

_FIX = "Fix the request: the same one will fail again."
#: the first class that an error belongs to decides: its HTTP status, and what to do
_KINDS: tuple[tuple[type[OpenDataError], int, str], ...] = (
    (TooManyLogins, 429, "Wait, then try the same again."),
    (RetryLater, 503, "Wait, then try the same again: nothing was stored."),
    (StartError, 502, "The broker can't be started: fix its configuration, then try again."),
    (ConnectionLost, 502, "The broker does not answer. This page connects again by itself; see that the broker runs."),
    (StoreError, 502, "The broker's store failed: see the broker's log."),
    (VersionMismatch, 502, "Update the older one of the broker and this page."),
    (NotFound, 404, "It may be gone meanwhile: look at the list."),
    (InstanceNotFound, 404, "Name an instance that the broker has."),
    (AccessRefused, 403, "Ask whoever keeps the broker's users for this right."),
    (PreconditionFailed, 409, "Look at how it is now, then try again."),
    (StaleLease, 409, "Somebody else has the message, or it was settled: look at how it is now."),
    (LeaseHeld, 409, "Let the holder settle the message, or release it."),
    (KeyReused, 409, "Use another idempotency key."),
    (LimitExceeded, 429, "Have the limit raised, or use less."),
    (MessageTooLarge, 413, "Send a smaller message."),
    (RequestError, 422, _FIX),
)
_ELSE = 500, "See the log of the page's server."


@dataclass(frozen=True)
class Fault:
    """What went wrong.

    Attributes:
        code: names the kind of error, such as `not_found`; see docs/web-api.md.
        message: what was wrong, for people.
        values: what it is about, such as `queue` or `message_id`.
        what_to_do: for people.
    """

    code: str
    message: str
    values: dict[str, Any]
    what_to_do: str


@dataclass(frozen=True)
class Answered:
    """A fault, and how it is answered over HTTP."""

    status: int
    fault: Fault
    retry_after_seconds: int | None = None
    more_headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def headers(self) -> dict[str, str]:
        after = {} if self.retry_after_seconds is None else {"Retry-After": str(self.retry_after_seconds)}
        return after | dict(self.more_headers)


def answered(exc: OpenDataError) -> Answered:
    """How an error is answered."""
    status, advice = next(((status, advice) for cls, status, advice in _KINDS if isinstance(exc, cls)), _ELSE)
    values = {name: plain(value) for name, value in exc.values.items()}
    after = None
    if status in (429, 502, 503):
        seconds = exc.values.get("seconds")
        after = min(max(math.ceil(seconds), 1), 60) if isinstance(seconds, (int, float)) else 2
    return Answered(status, Fault(wire_code(exc), exc.text or str(exc), values, advice), after)


def not_served(status: int, text: str) -> Answered:
    """What is said of an address or a method that is not served."""
    code = {404: "no_such_address", 405: "method_not_allowed"}.get(status, f"http_{status}")
    advice = "See the list of addresses: /api/v1/openapi.json." if status in (404, 405) else _FIX
    return Answered(status, Fault(code, text, {}, advice))


def invalid(problems: list[dict[str, Any]]) -> Answered:
    """What is said of parameters that are not valid."""
    told = [f"{'.'.join(map(str, one['loc'][1:] or one['loc']))}: {one['msg']}" for one in problems]
    values = {"problems": [{"where": list(map(str, one["loc"])), "message": one["msg"]} for one in problems]}
    return Answered(422, Fault("bad_request", "; ".join(told), values, _FIX))


def unforeseen(number: str) -> Answered:
    """What is said of a mistake of the page itself; its number is in the log."""
    text = f"This page made a mistake: number {number}."
    return Answered(500, Fault("internal", text, {"number": number}, f"The log of the page's server has {number}."))
