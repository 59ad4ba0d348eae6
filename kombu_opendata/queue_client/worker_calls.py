"""Calls about workers: the connected clients, their messages, and control over them."""

from __future__ import annotations

from ..errors import NotFound, OpenDataError
from ..protocol import messages as m
from ..protocol.messages import queue_messages as q
from . import checks
from .base import Base
from .message_models import MessageState, state_of
from .queue_models import Worker
from .requests import session_of


class Workers(Base):
    """Calls about the broker's clients: queue clients with all their connections, and Kombu's connections."""

    def workers(self) -> list[Worker]:
        """Return all clients that are connected or hold messages."""
        answer: q.Workers = self.calls.call(q.ListWorkers(0))
        return [Worker.of(row) for row in answer.workers]

    def worker(self, id: str) -> Worker:
        """Return a worker by its id.

        Raises:
            NotFound: there is no such worker.
        """
        for worker in self.workers():
            if worker.id == id:
                return worker
        raise NotFound(f"there is no worker {id}", session=id)

    def worker_messages(self, id: str, *, limit: int = 100) -> list[MessageState]:
        """Return the messages that a worker holds, at most ``limit`` (1 to 1,000)."""
        call = q.WorkerMessages(0, session_of(id), checks.whole(limit, "the limit", 1, 1000))
        answer: q.HeldMessages = self.calls.call(call)
        return [state_of(queue, row) for queue, row in answer.messages]

    def release_worker_messages(self, id: str) -> int:
        """Release all messages that a worker holds, without counting an attempt; return their number.

        The worker's tokens become stale.
        """
        return self._control(id, "release")

    def suspend_worker(self, id: str) -> int:
        """Suspend deliveries to a worker until it is resumed or disconnects; it keeps its messages.

        The call returns the number of its consumers.
        """
        return self._control(id, "suspend")

    def resume_worker(self, id: str) -> int:
        """Undo :meth:`suspend_worker`."""
        return self._control(id, "resume")

    def shutdown_worker(self, id: str) -> int:
        """Cancel a worker's consumers and return their number.

        Iterators of a queue client end. A Celery worker starts consuming again: stop it with Celery's remote control.
        """
        return self._control(id, "shutdown")

    def heartbeat(self) -> None:
        """Check by a commit that the broker is alive and its store accepts writes.

        Raises:
            OpenDataError: the broker is not alive, or its store accepts no writes.
        """
        self.calls.call(q.Ping(0))

    def is_healthy(self) -> bool:
        """Return True if the broker answers and its store accepts writes."""
        try:
            self.heartbeat()
        except (OpenDataError, OSError):
            return False
        return True

    def reclaim_messages(self, queue: str = "") -> int:
        """Release the messages that disconnected clients hold, in one queue or in all; return their number.

        This includes messages that a client read before it was closed or killed. Each release counts an attempt. After
        a restart of the broker, a client counts as disconnected until its next call.
        """
        answer: m.Count = self.calls.call(q.Reclaim(0, queue))
        return answer.count

    def _control(self, id: str, action: str) -> int:
        answer: m.Count = self.calls.call(q.ControlWorker(0, session_of(id), action))
        return answer.count
