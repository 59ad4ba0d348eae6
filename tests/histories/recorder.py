"""Writes the events of one client into a file of its own, each before or after what it says is done."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from kombu.exceptions import OperationalError

from kombu_opendata.errors import (
    AccessRefused,
    InvalidMessage,
    LimitExceeded,
    NotFound,
    OpenDataError,
    PreconditionFailed,
    QueueFull,
    QueuePaused,
    StaleLease,
    UniqueViolation,
)

from . import events as e

#: answers of a broker that has done nothing
REFUSALS = (
    AccessRefused,
    InvalidMessage,
    LimitExceeded,
    NotFound,
    PreconditionFailed,
    QueueFull,
    QueuePaused,
    StaleLease,
    UniqueViolation,
)
#: what leaves the outcome of a call unknown
NO_ANSWER = (OpenDataError, OperationalError, OSError)
T = TypeVar("T")


class Recorder:
    """The history of one client. A line is one write, which survives ``kill -9``."""

    def __init__(self, folder: Path, client: str) -> None:
        self.client = client
        self._calls = 0
        self._file = os.open(folder / f"{client}.events", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def now(self) -> float:
        return time.monotonic()

    def add(self, kind: type[e.Event], **fields: Any) -> None:
        """Record an event that happens now."""
        os.write(self._file, e.line(kind(at=time.monotonic(), **fields)))

    def called(self, operation: e.Operation) -> int:
        self._calls += 1
        self.add(e.Called, client=self.client, call=self._calls, operation=operation)
        return self._calls

    def returned(self, call: int, reply: Any = None, outcome: e.Outcome = "returned") -> None:
        self.add(e.Returned, client=self.client, call=call, outcome=outcome, reply=reply)

    def run(
        self, operation: e.Operation, call: Callable[[], T], reply: Callable[[T], Any] = lambda _: None
    ) -> T | None:
        """Do a call and record it; returns None if it was refused, or if its outcome is unknown."""
        number = self.called(operation)
        try:
            answer = call()
        except REFUSALS as exc:
            self.returned(number, str(exc), "refused")
            return None
        except NO_ANSWER:
            return None
        self.returned(number, reply(answer))
        return answer

    def lost(self, why: e.Loss, client: str = "") -> None:
        self.add(e.Lost, client=client or self.client, why=why)

    def close(self) -> None:
        os.close(self._file)


def digest(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=6).hexdigest()


def body_of(key: str, size: int) -> str:
    """A body that nothing else has."""
    return f"{key} " + hashlib.sha256(key.encode()).hexdigest() * (size // 64)
