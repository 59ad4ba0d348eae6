"""Failures: their position among all, and their facts from the history."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ....protocol.task_reports import FAILED as TASKS_FAILED
from ...state.settled_list import ListName

FAILED, ARCHIVED, ACKNOWLEDGED = "failed", "archived", "acknowledged"
KINDS = (FAILED, ACKNOWLEDGED, ARCHIVED)
#: the settled lists of the kinds that have one
LIST_OF: dict[str, ListName] = {FAILED: "failed", ARCHIVED: "archived_failed"}

DELIVERY_LIMIT = "delivery_limit"
#: states of tasks that failed, which are the reasons of their failures
STATES = tuple(state.name.lower() for state in TASKS_FAILED)
#: dimensions by which failures can be grouped
DIMENSIONS = ("task", "exception", "queue", "reason", "worker")


class FailurePosition(NamedTuple):
    """The position of a failure among all, by time."""

    at_ms: int
    message_id: int
    queue: str


class OpenFailure(NamedTuple):
    """A failure that was not handled yet; such tuples are in the order of their positions.

    Attributes:
        at_ms: the end of the message's last attempt.
        place: the bucket of the failed list that has the message, or the number of the acknowledged attempt.
        attempts: the number of claims of the message.
    """

    at_ms: int
    message_id: int
    queue: str
    kind: str
    place: int
    attempts: int

    @property
    def position(self) -> FailurePosition:
        return FailurePosition(self.at_ms, self.message_id, self.queue)


class Facts(msgspec.Struct, frozen=True, gc=False):
    """The history's facts of a failure; they never change.

    ``number`` is that of the last attempt in the log, -1 if it is not there; ``detailed`` is True if it has an error.
    """

    number: int = -1
    reason: str = ""
    exception: str = ""
    worker: str = ""
    task: str = ""
    task_id: str = ""
    runtime_us: int = 0
    detailed: bool = False


class Failure(NamedTuple):
    """A failure and its facts."""

    open: OpenFailure
    facts: Facts
