"""Task state of a message that a worker holds."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from ...protocol.messages import Lease
from ...protocol.task_reports import TaskReport


class TaskRun(Enum):
    """State of a task for which no report is pending."""

    BEGUN = "it runs, or will: an ack reports its start"
    ACKNOWLEDGED = "it runs; its end is reported separately"
    SETTLED = "the message is settled, and nothing is to be reported any more"


class TaskMessage(Protocol):
    """Message that was delivered.

    Attributes:
        run: the state of its task, if a worker reports it: the report for its settlement, or a :class:`TaskRun`.
    """

    lease: Lease
    run: TaskReport | TaskRun | None
