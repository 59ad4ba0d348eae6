# Made by tools/unasync.py from ../_async/worker_control.py: change that one, then run the script.
"""Workers: who is connected, what they hold, and a word to them."""

from __future__ import annotations

from ...errors import NotFound, OpenDataError, RequestError
from ...protocol import messages as m
from ...protocol import queue_messages as q
from .. import checks
from ..models import MessageState, Worker, state_of
from .base import Base


class Workers(Base):
    """Calls about the broker's clients: queue clients, with all their connections, and Kombu's connections."""

    def workers(self) -> list[Worker]:
        """Everybody who is connected, or holds something."""
        answer: q.Workers = self._calls.call(q.ListWorkers(0))
        return [Worker.of(found) for found in answer.workers]

    def worker(self, id: str) -> Worker:
        """One of them.

        Raises:
            NotFound: it is gone.
        """
        for found in self.workers():
            if found.id == id:
                return found
        raise NotFound(f"no worker {id}: list them", session=id)

    def worker_messages(self, id: str, *, limit: int = 100) -> list[MessageState]:
        """What a worker holds, up to ``limit`` (1,000) messages."""
        call = q.WorkerMessages(0, _session(id), checks.whole(limit, "the limit", 1, 1000))
        answer: q.HeldMessages = self._calls.call(call)
        return [state_of(queue, row) for queue, row in answer.messages]

    def release_worker_messages(self, id: str) -> int:
        """Give back all that a worker holds, at no cost of an attempt; returns how many. Its tokens are stale then."""
        return self._control(id, "release")

    def suspend_worker(self, id: str) -> int:
        """Hand it nothing until it is resumed or its last connection ends; what it holds it keeps.

        Returns how many consumers it has.
        """
        return self._control(id, "suspend")

    def resume_worker(self, id: str) -> int:
        """Undo :meth:`suspend_worker`."""
        return self._control(id, "resume")

    def shutdown_worker(self, id: str) -> int:
        """Cancel its consumers; returns how many there were.

        Iterators of a queue client end. A Celery worker consumes again: stop that one with Celery's own control.
        """
        return self._control(id, "shutdown")

    def heartbeat(self) -> None:
        """Ask the broker for a sign of life, which is a commit.

        Raises:
            OpenDataError: there is none.
        """
        self._calls.call(q.Ping(0))

    def is_healthy(self) -> bool:
        """Whether the broker answers, and its store takes writes."""
        try:
            self.heartbeat()
        except (OpenDataError, OSError):
            return False
        return True

    def reclaim_messages(self, queue: str = "") -> int:
        """Return now what clients hold that are not connected, in a queue or in all; returns how many.

        That also ends what a client read for a time before it was closed or killed. It costs an attempt. After a
        restart of the broker a client is not connected until its next call.
        """
        answer: m.Count = self._calls.call(q.Reclaim(0, queue))
        return answer.count

    def _control(self, id: str, action: str) -> int:
        answer: m.Count = self._calls.call(q.ControlWorker(0, _session(id), action))
        return answer.count


def _session(id: str) -> bytes:
    try:
        return bytes.fromhex(id)
    except (TypeError, ValueError) as exc:
        raise RequestError(f"a worker's id is 32 hexadecimal digits, not {id!r}", session=str(id)) from exc
