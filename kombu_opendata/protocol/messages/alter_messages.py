"""The messages by which an operator steers a queue: alter its arguments, pause and resume it."""

from __future__ import annotations

from typing import Any

from .message_base import Numbered


# ------------------------------------------------------------------ client → broker
class AlterQueue(Numbered, tag=220):
    """Change arguments of a queue, over what apps declare. Answer: QueueAltered.

    A value of None means: as if the argument were not declared. ``unset`` names arguments that return to their declared
    values, and ``reset`` returns all of them before the others are set. A change that deletes messages is refused
    without ``force``. With ``dry_run`` nothing is changed.
    """

    queue: str
    arguments: dict[str, Any]
    unset: list[str]
    reset: bool = False
    force: bool = False
    dry_run: bool = False


class PauseQueue(Numbered, tag=221):
    """Let a queue's consumers and readers get nothing; with ``publishes``, refuse publishes too. Answer: QueuePause."""

    queue: str
    publishes: bool = False


class ResumeQueue(Numbered, tag=222):
    """Undo PauseQueue; with ``publishes_only``, consumers and readers still get nothing. Answer: QueuePause."""

    queue: str
    publishes_only: bool = False


# ------------------------------------------------------------------ broker → client
class QueueAltered(Numbered, tag=223):
    """What a change did, or would do.

    Attributes:
        declared: the arguments of the declaration.
        overrides: what operators have changed of them, with this change.
        before, after: the arguments in effect.
        counts: what it means for messages, in numbers by name; see docs/queue-arguments.md.
        notes: the same as sentences.
    """

    declared: dict[str, Any]
    overrides: dict[str, Any]
    before: dict[str, Any]
    after: dict[str, Any]
    counts: dict[str, int]
    notes: list[str]


class QueuePauseReply(Numbered, tag=224):
    """Whether a queue is paused now, since when (0: it is not), and whether the call changed that."""

    deliveries: bool
    publishes: bool
    since_ms: int
    changed: bool
