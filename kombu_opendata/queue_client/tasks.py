"""Calls about a Celery task by its id, and its result."""

from __future__ import annotations

from typing import Any

from ..errors import AccessRefused, MessageNotFound
from ..protocol.messages import GetResults, Results
from ..protocol.messages.failure_messages import FailureInfo
from ..protocol.messages.history_messages import AttemptInfo, MessageInfo
from .failures import Failures
from .history import History
from .message_models import Message
from .peeking import Peeking
from .task_models import (
    RESULT_PREFIX,
    RelatedTask,
    Task,
    TaskResult,
    arguments_of,
    related,
    result_of,
    state_of,
)  # fmt: skip

#: limit for the messages, attempts, children and failures of a task that are listed
_MOST = 100


class Tasks(Peeking, History, Failures):
    """Calls about single tasks."""

    def task(self, id: str | int) -> Task:
        """Return a task by Celery's id, or by the id of its message (an int), with its state, attempts and result.

        Raises:
            MessageNotFound: there is no such task, or it is no longer in the history.
            PreconditionFailed: the broker keeps no history.
        """
        if isinstance(id, int):
            id = self._task_of(id)
        page = self.list_messages(headers={"id": id}, order="asc", limit=_MOST)
        messages = [item for item in page.items if "task" in item.headers]
        attempts = self._attempts_of(id)
        if not messages and not attempts:
            text = f"no task {id!r}: check the id; the history forgets a task some time after it ended"
            raise MessageNotFound(text, task_id=id)
        newest = messages[-1] if messages else None
        message = self._message(newest)
        queues = newest.queues if newest is not None else ()
        handled = self.list_failures(task_ids=[id], handled=True, limit=_MOST).items
        failures = self.list_failures(task_ids=[id], limit=_MOST).items
        again = self._again(handled)
        args, kwargs, note = arguments_of(message)
        return Task(
            id,
            newest.headers.get("task", "") if newest is not None else _name_of(*failures, *handled),
            state_of(queues, attempts),
            queues,
            tuple(item.id for item in messages) or tuple(dict.fromkeys(item.message_id for item in attempts)),
            args,
            kwargs,
            message.content_type if message is not None else "",
            newest.headers if newest is not None else {},
            attempts,
            self._result(id, message),
            self._children_of(id, {item.message_id for item in again}),
            failures,
            handled,
            again,
            note,
        )

    def task_result(self, id: str, *, key: str = "") -> TaskResult | None:
        """Return the result of a task, if the broker is its result backend; None if there is none.

        Args:
            key: the name of the result, if it differs from ``celery-task-meta-`` and the id.
        """
        reply: Results = self.calls.call(GetResults(0, [(key or RESULT_PREFIX + id).encode()]))
        return None if reply.values[0] is None else result_of(reply.values[0])

    # ------------------------------------------------------------ parts of a task
    def _task_of(self, message_id: int) -> str:
        """Return the id of a message's task."""
        about = self.retrieve_message(message_id)
        if about is None or "task" not in about.headers:
            text = f"no message {message_id} of a task: see `opendata-queue message {message_id}`"
            raise MessageNotFound(text, message_id=message_id)
        return about.headers.get("id", "")

    def _attempts_of(self, id: str) -> tuple[AttemptInfo, ...]:
        query: Any = {"headers": {"id": id}, "order": "asc", "limit": _MOST}
        try:
            return self.list_attempts(**query, tracebacks=True).items
        except AccessRefused:
            return self.list_attempts(**query).items

    def _children_of(self, id: str, others: set[int]) -> tuple[RelatedTask, ...]:
        """Return the tasks that it started, except those of these messages."""
        page = self.list_messages(headers={"parent_id": id}, order="asc", limit=_MOST)
        return tuple(related(child) for child in page.items if child.id not in others)

    def _message(self, about: MessageInfo | None) -> Message | None:
        if about is None:
            return None
        try:
            return self.get(about.id).message
        except MessageNotFound:
            return None  # collected in the meantime, or the user may not read it

    def _again(self, handled: tuple[FailureInfo, ...]) -> tuple[RelatedTask, ...]:
        tasks = []
        for failure in handled:
            if failure.retried_as >= 0:
                about = self.retrieve_message(failure.retried_as)
                tasks.append(RelatedTask(failure.retried_as, "", "") if about is None else related(about))
        return tuple(tasks)

    def _result(self, id: str, message: Message | None) -> TaskResult | None:
        about = message.properties.get("x-opendata-result") if message is not None else None
        key = str(about[0]) if isinstance(about, (list, tuple)) and about else ""
        try:
            return self.task_result(id, key=key)
        except AccessRefused:
            return None


def _name_of(*failures: FailureInfo) -> str:
    """Return the name of a task whose messages are no longer stored, if it failed."""
    return next((failure.task for failure in failures if failure.task), "")
