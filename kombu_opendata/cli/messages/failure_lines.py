"""How failures and attempts of tasks are shown."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from ...json_values import unpacked
from ..hints import next_command
from ..terminal.output import say

if TYPE_CHECKING:
    from ...protocol.messages.failure_messages import FailureInfo

_CELL = 60


def what_was_raised(one: Any, limit: int = _CELL) -> str:
    """The exception of a failure or an attempt on one line, cut."""
    text = f"{one.exception}: {one.error}" if one.error else str(one.exception)
    return text if not limit or len(text) <= limit else text[: limit - 1] + "…"


def as_document(one: FailureInfo) -> Any:
    """A failure for --json."""
    return {**unpacked(one), "retried_as": None if one.retried_as < 0 else one.retried_as}


def say_lines(text: str) -> None:
    """Print a text of several lines, such as a traceback."""
    for line in text.split("\n"):
        say(line)


def hint(id: str) -> str:
    """What to do about a failure."""
    return f"run it again: {next_command(f'failed retry --id {shlex.quote(id)}')}"
