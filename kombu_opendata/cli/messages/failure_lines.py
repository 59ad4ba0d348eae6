"""Output of failures and attempts of tasks."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from ...errors import AccessRefused, NotFound
from ...json_values import unpacked
from ...masking import Masking
from ..hints import next_command
from ..terminal.output import say

if TYPE_CHECKING:
    from ...protocol.messages.failure_messages import FailureInfo
    from ...queue_client import QueueClient
    from ...queue_client.task_models import Task

_CELL = 60
#: characters of a task's positional or named arguments that are shown
ARGUMENTS_LIMIT = 2_000


def what_was_raised(one: Any, limit: int = _CELL) -> str:
    """Return the exception of a failure or an attempt on one line, cut to ``limit`` characters."""
    text = f"{one.exception}: {one.error}" if one.error else str(one.exception)
    return text if not limit or len(text) <= limit else text[: limit - 1] + "…"


def as_document(one: FailureInfo) -> Any:
    """Return a failure as a document for --json."""
    return {**unpacked(one), "retried_as": None if one.retried_as < 0 else one.retried_as}


def task_arguments(client: QueueClient, one: FailureInfo) -> dict[str, Any]:
    """Return the masked arguments of a failed task; empty for any other message.

    If they can't be shown, return the reason.
    """
    if not one.task_id:
        return {}
    try:
        return masked_arguments(client.task(one.message_id))
    except (AccessRefused, NotFound):
        return {}


def masked_arguments(found: Task) -> dict[str, Any]:
    """Return the arguments of a task with secrets masked, or the reason why they can't be shown."""
    if found.args is None or found.kwargs is None:
        return {"arguments": f"({found.arguments_note})"}
    masking = Masking()
    return {"args": masking.value(found.args), "kwargs": masking.value(found.kwargs)}


def say_lines(text: str) -> None:
    """Print a text of several lines, such as a traceback."""
    for line in text.split("\n"):
        say(line)


def hint(id: str) -> str:
    """Return the command that runs a failure again."""
    return f"run it again: {next_command(f'failed retry --id {shlex.quote(id)}')}"
