# Made by tools/unasync.py from ../_async/worker_control.py: change that one, then run the script.
"""Workers: who is connected, what they hold, and control over them."""

from __future__ import annotations

from ...errors import NotFound, OpenDataError
from ...protocol import messages as m
from ...protocol.messages import queue_messages as q
from .. import checks
from ..message_models import MessageState, state_of
from ..queue_models import Worker
from ..requests import session_of
from .base import Base


class Workers(Base):
    """Calls about the broker's clients: queue clients with all their connections, and Kombu's connections."""

    def workers(self) -> list[Worker]:
        """All clients that are connected or hold messages."""
        answer: q.Workers = self._calls.call(q.ListWorkers(0))
        return [Worker.of(found) for found in answer.workers]

    def worker(self, id: str) -> Worker:
        """A worker by its id.

        Raises:
            NotFound: there is no such worker.
        """
        for found in self.workers():
            if found.id == id:
                return found
        raise NotFound(f"there is no worker {id}", session=id)

    def worker_messages(self, id: str, *, limit: int = 100) -> list[MessageState]:
        """The messages that a worker holds, at most ``limit`` (1 to 1,000)."""
        call = q.WorkerMessages(0, session_of(id), checks.whole(limit, "the limit", 1, 1000))
        answer: q.HeldMessages = self._calls.call(call)
        return [state_of(queue, row) for queue, row in answer.messages]

    def release_worker_messages(self, id: str) -> int:
        """Return all messages that a worker holds to their queues, at no cost of an attempt; returns how many.

        The worker's tokens become stale.
        """
        return self._control(id, "release")

    def suspend_worker(self, id: str) -> int:
        """Deliver nothing more to a worker until it is resumed or disconnects; it keeps what it holds.

        Returns how many consumers it has.
        """
        return self._control(id, "suspend")

    def resume_worker(self, id: str) -> int:
        """Undo :meth:`suspend_worker`."""
        return self._control(id, "resume")

    def shutdown_worker(self, id: str) -> int:
        """Cancel a worker's consumers; returns how many there were.

        Iterators of a queue client end. A Celery worker consumes again: stop it with Celery's own remote control.
        """
        return self._control(id, "shutdown")

    def heartbeat(self) -> None:
        """Check that the broker is alive and its store takes writes, by a commit.

        Raises:
            OpenDataError: it is not.
        """
        self._calls.call(q.Ping(0))

    def is_healthy(self) -> bool:
        """Whether the broker answers and its store takes writes."""
        try:
            self.heartbeat()
        except (OpenDataError, OSError):
            return False
        return True

    def reclaim_messages(self, queue: str = "") -> int:
        """Return the messages that disconnected clients hold, in one queue or in all; returns how many.

        This includes messages that a client read before it was closed or killed. It costs an attempt. After a restart
        of the broker, a client counts as disconnected until its next call.
        """
        answer: m.Count = self._calls.call(q.Reclaim(0, queue))
        return answer.count

    def _control(self, id: str, action: str) -> int:
        answer: m.Count = self._calls.call(q.ControlWorker(0, session_of(id), action))
        return answer.count
