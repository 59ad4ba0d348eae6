"""What the queue client hands out: plain values, the same for both clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Message:
    """A message, as a read, a peek or a look by its id shows it.

    Attributes:
        id: its number, which is never used again; ids ascend with time.
        queue: where it was found.
        body: as it was sent: a JSON value, text, or bytes where the content type is none of these.
        headers: of the message, as it was sent.
        attempts: how often it was handed out, this time included.
    """

    id: int
    queue: str
    body: Any
    headers: dict[str, Any] = field(default_factory=dict)
    attempts: int = 0
