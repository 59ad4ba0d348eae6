"""Messages by which an operator alters the arguments of a queue, pauses it and resumes it."""

from __future__ import annotations

from typing import Any

from .message_base import Numbered


# ------------------------------------------------------------------ client → broker
class AlterQueue(Numbered, tag=220):
    """Request to override declared arguments of a queue. Reply: QueueAltered.

    A value of None removes the argument. ``unset`` names arguments that return to their declared values, and ``reset``
    returns all of them before the others are set. A change that deletes messages is refused without ``force``. With
    ``dry_run`` nothing is changed.
    """

    queue: str
    arguments: dict[str, Any]
    unset: list[str]
    reset: bool = False
    force: bool = False
    dry_run: bool = False


class PauseQueue(Numbered, tag=221):
    """Request to pause the deliveries of a queue; with ``publishes``, refuse publishes too. Reply: QueuePauseReply."""

    queue: str
    publishes: bool = False


class ResumeQueue(Numbered, tag=222):
    """Request to undo PauseQueue; with ``publishes_only``, deliveries stay paused. Reply: QueuePauseReply."""

    queue: str
    publishes_only: bool = False


# ------------------------------------------------------------------ broker → client
class QueueAltered(Numbered, tag=223):
    """Effect of a change, made or intended.

    Attributes:
        declared: the arguments of the declaration.
        overrides: the changes of operators, including this one.
        before, after: the arguments in effect before and after the change.
        counts: the effect on messages, in numbers by name; see docs/queue-arguments.md.
        notes: the same as sentences.
    """

    declared: dict[str, Any]
    overrides: dict[str, Any]
    before: dict[str, Any]
    after: dict[str, Any]
    counts: dict[str, int]
    notes: list[str]


class QueuePauseReply(Numbered, tag=224):
    """State of a queue's pause, its start (0: not paused), and True if the call changed it."""

    deliveries: bool
    publishes: bool
    since_ms: int
    changed: bool
