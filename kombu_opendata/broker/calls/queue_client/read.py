"""Read: claims messages for a time, or pops them, immediately or when some arrive."""

from __future__ import annotations

from asyncio import TimerHandle, get_running_loop
from dataclasses import dataclass

from ....errors import PreconditionFailed
from ....protocol.messages import queue_messages as q
from ....storage.state.queue_buckets import QueueEntry
from ...delivery.queues import Queues
from ...model.queue import BrokerQueue
from ...model.sessions import ConsumedQueue, Session
from ..dispatch.context import Context
from ..dispatch.registry import handles
from .call_limits import MAX_WAIT_MS, check_ms, check_quantity
from .claimed_messages import Claimed, Claiming
from .conditional_read import ConditionalReads


class PendingRead:
    """A Read that takes available messages, or waits for some."""

    def __init__(self, session: Session, queue: BrokerQueue, msg: q.Read, claimed: Claimed) -> None:
        self.session = session
        self.rid = msg.rid
        self._queue = queue
        self._claimed = claimed
        self._waits = msg.wait_ms > 0
        self._timer: TimerHandle | None = None
        if self._waits:
            self._timer = get_running_loop().call_later(msg.wait_ms / 1000, self.stop)

    def take(self, _queue: ConsumedQueue, entry: QueueEntry) -> bool:
        self._claimed.add(entry)
        if not self._claimed.is_enough:
            return False
        self._answer()
        return True

    def nothing(self) -> bool:
        if self._waits and not self._claimed:
            return False
        self._answer()
        return True

    def end(self) -> None:
        self._claimed.clear()
        self._answer()

    def drop(self) -> None:
        """Cancel the wait of a lost connection, and retain the claimed messages for the client's repeated call.

        If the client does not repeat the call, the leases end at their time.
        """
        self._cancel()
        if self._claimed:
            self._answer()

    def stop(self) -> None:
        """Stop waiting, and reply."""
        if self in self._queue.getters:
            self._queue.getters.remove(self)
            self._answer()

    def _answer(self) -> None:
        self._cancel()
        self._claimed.answer()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


@dataclass(frozen=True, slots=True)
class ReadCalls:
    """Reads with and without a condition."""

    _conditional: ConditionalReads
    _uses: Claiming
    _queues: Queues

    @handles(q.Read)
    def read(self, call: Context, msg: q.Read) -> None:
        check_quantity(msg.quantity)
        check_ms(msg.vt_ms, 1, "the visibility timeout")
        check_ms(msg.wait_ms, 0, "the longest wait", MAX_WAIT_MS)
        queue, session = call.queue(msg.queue), call.session
        if session.suspended:
            raise PreconditionFailed(f"the worker {session.name!r} is suspended: resume it", worker=session.name)
        queue.used_at_ms = self._uses.clock.now_ms()
        if msg.selector or msg.equal or msg.grouped:
            call.run(msg.rid, self._conditional.read(session, queue, msg), once=True)
        else:
            queue.getters.append(PendingRead(session, queue, msg, Claimed(self._uses, session, queue, msg)))
            self._queues.wake(queue)

    @handles(q.StopReading)
    def stop_reading(self, call: Context, msg: q.StopReading) -> None:
        self.stop(call.session, msg.read_rid)

    def stop(self, session: Session, rid: int | None = None) -> None:
        """End the waiting reads of a session, or the read with this number."""
        self._conditional.stop(session, rid)
        for queue in self._queues.values():
            for getter in list(queue.getters):
                if isinstance(getter, PendingRead) and getter.session is session and rid in (None, getter.rid):
                    getter.stop()
