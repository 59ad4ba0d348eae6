"""What a worker reports of a task that it ran: its state, how long it took, and how it failed.

A message's *outcome* is what the broker does with it (:class:`.messages.Outcome`); the *state* is what became of the
task. A report is made where the task ran, so its texts are cut there, and the broker refuses longer ones.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

#: the most bytes of a report's texts
MAX_NAME, MAX_EXCEPTION, MAX_ERROR, MAX_TRACEBACK = 255, 255, 2 << 10, 16 << 10


class TaskState(IntEnum):
    """What became of a task. 0 is no state: nobody reported it."""

    SUCCEEDED = 1
    RAISED = 2
    RETRIED = 3
    REVOKED = 4
    TIMED_OUT = 5
    REJECTED = 6
    IGNORED = 7
    LOST = 8  # its worker, or its pool process, ended while it ran


#: the states of tasks that failed
FAILED = (TaskState.RAISED, TaskState.TIMED_OUT, TaskState.LOST, TaskState.REJECTED)
#: the names of states by number
STATES = ("", *(state.name.lower() for state in TaskState))


class TaskReport(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What became of one run of a task; :meth:`cut` makes one from any texts.

    Attributes:
        state: a :class:`TaskState`.
        runtime_us: how long it ran, in microseconds.
        pid: of the process that ran it.
        task: its name, which the broker's metrics use.
        exception: the exception's type, as in ``builtins.ValueError``.
        error: the exception's message.
        traceback: as Python prints it.
    """

    state: int
    runtime_us: int = 0
    pid: int = 0
    task: str = ""
    exception: str = ""
    error: str = ""
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
        """A report whose texts are short enough, and have a UTF-8 form."""
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
        """Why a broker must refuse it; empty if nothing is wrong."""
        if not 0 < self.state < len(STATES):
            return f"task state {self.state} is unknown"
        if not (0 <= self.runtime_us <= _MAX_U63 and 0 <= self.pid <= _MAX_U32):
            return "a runtime or a process id is out of range"
        if not (self.exception or self.error or self.traceback) and 4 * len(self.task) <= MAX_NAME:
            return ""  # nearly all
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
    """A text of at most so many bytes of UTF-8: of a longer one the beginning and the end, with a note in between."""
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
