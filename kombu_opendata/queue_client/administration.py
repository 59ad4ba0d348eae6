"""Calls about the broker and its clients: reports, maintenance, instances, and control of workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..errors import NotFound, OpenDataError, RequestError
from ..json_values import moment
from ..protocol import messages as m
from . import checks
from .base import Base
from .message_models import MessageState, state_of


@dataclass(frozen=True)
class Worker:
    """Client that is connected, was connected recently, or still holds messages.

    Attributes:
        name: the name that the client has set.
        since: the time of its first connection; None if it only holds messages.
        connected: whether it has a connection now.
        connections: the number of its connections. Each waiting read and each iterator has a separate one.
        suspended: whether its deliveries are suspended until it is resumed.
        held: the number of its messages whose tasks have not begun. A task with late acknowledgement counts as begun
            after it has run for a second or two.
        running: the number of its running tasks.
        consumers: the queues that it consumes.
        reader: whether it holds messages by reads and not only as a consumer.
        prefetch: the total limit for messages that its consumers of stored queues may hold; 0 means no limit, and None
            means that it has no such consumer.
        oldest_since: the time from which it holds or runs its oldest message.
        oldest_id: the id of that message.
        done_per_minute: the number of messages and tasks that it finished, in the last minute.
        failed_per_minute: the number of its messages and tasks that failed, in the last minute.
        user: empty if it did not log in.
    """

    id: str
    name: str
    since: datetime | None
    connected: bool
    suspended: bool
    held: int
    consumers: tuple[str, ...]
    reader: bool
    connections: int = 0
    running: int = 0
    prefetch: int | None = None
    oldest_since: datetime | None = None
    oldest_id: int | None = None
    done_per_minute: float = 0.0
    failed_per_minute: float = 0.0
    user: str = ""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Worker:
        oldest_at_ms, oldest_id = row.get("oldest") or (0, None)
        return cls(
            row["session"].hex(),
            row["name"],
            moment(row["since_ms"]),
            row["connected"],
            row["suspended"],
            row["held"],
            tuple(row["consumers"]),
            row["reader"],
            row.get("connections", int(row["connected"])),  # an older broker has a row for each connection
            row.get("running", 0),
            row.get("prefetch"),
            moment(oldest_at_ms),
            oldest_id,
            row.get("done_per_minute", 0.0),
            row.get("failed_per_minute", 0.0),
            row.get("user", ""),
        )


class Administration(Base):
    """Calls about the broker and its clients. If users log in, most of them need the role admin or operator."""

    def status(self) -> dict[str, Any]:
        """Return the broker's report on its version, store, instances and maintenance.

        See ``opendata-queue status``.
        """
        return self.calls.call(m.GetStatus(0)).report

    def whoami(self) -> m.Identity:
        """Return the user of this client, and the permissions of that user in the instance."""
        return self.calls.call(m.WhoAmI(0))

    def maintain(self, duties: Iterable[str] = ()) -> dict[str, Any]:
        """Run maintenance duties in the broker and return its report. Other calls are not blocked.

        :func:`kombu_opendata.client.maintain.maintain`, which has a timeout, describes the duties and the report.
        """
        return self.calls.call_apart(m.Maintain(0, list(duties), 0.0)).report

    def reload(self) -> m.Reloaded:
        """Reload the broker's files of users and certificates; return the additions, removals and changes.

        Raises StartError for a file that can't be used; its previous contents stay in effect.
        """
        return self.calls.call(m.Reload(0))

    def hand_over(self) -> list[str]:
        """Hand over to the standby and end the broker; return the standby's addresses.

        Raises PreconditionFailed if no standby is connected.
        """
        answer = self.calls.call(m.HandOver(0))
        return list(answer.addresses)

    def create_instance(self, name: str) -> bool:
        """Create an instance, which clients may then name in their URLs; return False if it exists already.

        Raises:
            RequestError: the name is not valid for an instance.
            StoreError: the store can't hold an instance.
        """
        return self.calls.call(m.CreateInstance(0, name)).created

    def list_instances(self) -> dict[str, bool]:
        """Return the names of the instances, with True for open ones. A store in a bucket lists only open ones."""
        answer = self.calls.call(m.ListInstances(0))
        return dict(sorted(answer.instances.items()))

    # ------------------------------------------------------------ clients
    def workers(self) -> list[Worker]:
        """Return all clients that are connected or hold messages."""
        answer = self.calls.call(m.ListWorkers(0))
        return [Worker.of(row) for row in answer.workers]

    def worker(self, id: str) -> Worker:
        """Return a worker by its id; raise NotFound if there is no such worker."""
        for worker in self.workers():
            if worker.id == id:
                return worker
        raise NotFound(f"there is no worker {id}", session=id)

    def worker_messages(self, id: str, *, limit: int = 100) -> list[MessageState]:
        """Return the messages that a worker holds, at most ``limit`` (1 to 1,000)."""
        call = m.WorkerMessages(0, _session_of(id), checks.whole(limit, "the limit", 1, 1000))
        answer = self.calls.call(call)
        return [state_of(queue, row) for queue, row in answer.messages]

    def release_worker_messages(self, id: str) -> int:
        """Release all messages that a worker holds, without counting an attempt; return their number."""
        return self._control(id, "release")

    def suspend_worker(self, id: str) -> int:
        """Suspend deliveries to a worker until it is resumed or disconnects; return the number of its consumers."""
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
        """Check by a commit that the broker is alive and its store accepts writes; raise OpenDataError otherwise."""
        self.calls.call(m.Ping(0))

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
        return self.calls.call(m.Reclaim(0, queue)).count

    def _control(self, id: str, action: str) -> int:
        return self.calls.call(m.ControlWorker(0, _session_of(id), action)).count


def _session_of(id: str) -> bytes:
    """Return the session that a worker's id names; raise RequestError if it names none."""
    try:
        return bytes.fromhex(id)
    except (TypeError, ValueError) as exc:
        raise RequestError(f"a worker's id must be 32 hexadecimal digits, not {id!r}", session=str(id)) from exc
