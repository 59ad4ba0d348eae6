"""What a worker knows of the task of a message that it holds."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from ...protocol.messages import Lease
from ...protocol.task_reports import TaskReport


class TaskRun(Enum):
    """How a task fares of which nothing is to be reported now."""

    BEGUN = "it runs, or will: an ack says that it has begun"
    ACKNOWLEDGED = "it runs; its end is reported by itself"
    SETTLED = "the message is settled, and nothing is to be reported any more"


class TaskMessage(Protocol):
    """A message that was delivered.

    Attributes:
        run: how its task fares, if a worker tells: what its settlement is to report, or a :class:`TaskRun`.
    """

    lease: Lease
    run: TaskReport | TaskRun | None
