"""Reports of a worker about its tasks: state, runtime and failure.

The *outcome* of a message is its settlement (:class:`.messages.Outcome`); the *state* is the final state of its task.
The process of the task creates the report and cuts its texts to their limits; the broker refuses longer texts.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

#: limits for the texts of a report, in bytes
MAX_NAME, MAX_EXCEPTION, MAX_ERROR, MAX_TRACEBACK = 255, 255, 2 << 10, 16 << 10


class TaskState(IntEnum):
    """Final state of a task; 0 stands for a state that was not reported."""

    SUCCEEDED = 1
    RAISED = 2
    RETRIED = 3
    REVOKED = 4
    TIMED_OUT = 5
    REJECTED = 6
    IGNORED = 7
    LOST = 8  # the worker or its pool process ended during the run


#: the states of tasks that failed
FAILED = (TaskState.RAISED, TaskState.TIMED_OUT, TaskState.LOST, TaskState.REJECTED)
#: names of states by number
STATES = ("", *(state.name.lower() for state in TaskState))


class TaskReport(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Report of one run of a task; :meth:`cut` creates a report from texts of any length."""

    state: int  # a :class:`TaskState`
    runtime_us: int = 0  # the runtime, in microseconds
    pid: int = 0  # the id of the process that ran the task
    task: str = ""  # the name of the task, which the broker's metrics use
    exception: str = ""  # the exception's type, as in ``builtins.ValueError``
    error: str = ""  # the exception's message
    traceback: str = ""

    @classmethod
    def cut(
        cls,
        state: int,
        runtime_us: int = 0,
        pid: int = 0,
        task: str = "",
        exception: str = "",
        error: str = "",
        traceback: str = "",
    ) -> TaskReport:
        """Return a report whose texts are cut to their limits and are valid UTF-8."""
        return cls(
            state,
            min(max(runtime_us, 0), _MAX_U63),
            min(max(pid, 0), _MAX_U32),
            shortened(task, MAX_NAME),
            shortened(exception, MAX_EXCEPTION),
            shortened(error, MAX_ERROR),
            shortened(traceback, MAX_TRACEBACK),
        )

    @property
    def fault(self) -> str:
        """Reason why a broker must refuse the report; empty if it is valid."""
        if not 0 < self.state < len(STATES):
            return f"task state {self.state} is unknown"
        if not (0 <= self.runtime_us <= _MAX_U63 and 0 <= self.pid <= _MAX_U32):
            return "a runtime or a process id is out of range"
        if not (self.exception or self.error or self.traceback) and 4 * len(self.task) <= MAX_NAME:
            return ""  # the case of nearly all reports
        for text, limit in (
            (self.task, MAX_NAME),
            (self.exception, MAX_EXCEPTION),
            (self.error, MAX_ERROR),
            (self.traceback, MAX_TRACEBACK),
        ):
            if 4 * len(text) > limit and len(text.encode()) > limit:
                return f"a text of a task's report has more than {limit} bytes"
        return ""


def shortened(text: str, limit: int) -> str:
    """Cut the middle of a text that has more than ``limit`` bytes of UTF-8, and leave a note in its place."""
    if len(text) <= limit:
        raw = text.encode("utf-8", "replace")  # a lone surrogate becomes a question mark
        if len(raw) <= limit:
            return raw.decode()
    return _cut(text, limit)


def _cut(text: str, limit: int) -> str:
    note = f"\n… {len(text)} characters, cut here …\n" if limit >= MAX_ERROR else "…"
    room = limit - len(note.encode())
    tail = text[-limit:].encode("utf-8", "replace")[-(2 * room // 3) :].decode("utf-8", "ignore")
    head = text[:limit].encode("utf-8", "replace")[: room - len(tail.encode())].decode("utf-8", "ignore")
    return head + note + tail


_MAX_U32 = (1 << 32) - 1
_MAX_U63 = (1 << 63) - 1
