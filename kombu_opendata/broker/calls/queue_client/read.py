"""Read: messages claimed for a time, at once or when some come; and popped ones."""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle

from ....errors import PreconditionFailed
from ....protocol import queue_messages as q
from ....storage.clock import Clock
from ....storage.state.queue_buckets import Entry
from ...delivery.queues import Queues
from ...model.queue import BrokerQueue
from ...model.sessions import ConsumedQueue, Session
from ..context import Context
from ..registry import handles
from .call_limits import MAX_WAIT_MS, check_ms, check_quantity
from .claimed import Claimed, Claiming
from .conditional_read import ConditionalReads


class Reader:
    """A Read that waits at its queue, or takes what is there."""

    def __init__(
        self, session: Session, queue: BrokerQueue, msg: q.Read, claimed: Claimed, loop: AbstractEventLoop
    ) -> None:
        self.session = session
        self.rid = msg.rid
        self._queue = queue
        self._claimed = claimed
        self._waits = msg.wait_ms > 0
        self._timer: TimerHandle | None = None
        if self._waits:
            self._timer = loop.call_later(msg.wait_ms / 1000, self.stop)

    def take(self, _queue: ConsumedQueue, entry: Entry) -> bool:
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
        """The client asks again and gets what this one took; if it does not, the time of the leases ends."""
        self._cancel()
        if self._claimed:
            self._answer()

    def stop(self) -> None:
        """Wait no longer."""
        if self in self._queue.getters:
            self._queue.getters.remove(self)
            self._answer()

    def _answer(self) -> None:
        self._cancel()
        self._claimed.answer()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class ReadCalls:
    """Reads of either kind."""

    def __init__(
        self, conditional: ConditionalReads, uses: Claiming, queues: Queues, clock: Clock, loop: AbstractEventLoop
    ) -> None:
        self._conditional = conditional
        self._uses = uses
        self._queues = queues
        self._clock = clock
        self._loop = loop

    def _filter_of(self, msg: q.Read) -> str:
        return msg.selector

    @handles(q.Read, once=True, filter_of=_filter_of)
    def read(self, call: Context, msg: q.Read) -> None:
        check_quantity(msg.quantity)
        check_ms(msg.vt_ms, 1, "the visibility timeout")
        check_ms(msg.wait_ms, 0, "the longest wait", MAX_WAIT_MS)
        queue, session = call.queue(msg.queue), call.session
        if session.suspended:
            raise PreconditionFailed(f"the worker {session.name!r} is suspended: resume it", worker=session.name)
        queue.used_at_ms = self._clock.now_ms()
        if msg.selector or msg.equal or msg.grouped:
            call.run(msg.rid, self._conditional.read(session, queue, msg), once=True)
        else:
            queue.getters.append(Reader(session, queue, msg, Claimed(self._uses, session, queue, msg), self._loop))
            self._queues.wake(queue)

    @handles(q.StopReading)
    def stop_reading(self, call: Context, msg: q.StopReading) -> None:
        self.stop(call.session, msg.read_rid)

    def stop(self, session: Session, rid: int | None = None) -> None:
        """End the reads of a session that wait, or the one of this number."""
        self._conditional.stop(session, rid)
        for queue in self._queues.values():
            for getter in list(queue.getters):
                if isinstance(getter, Reader) and getter.session is session and rid in (None, getter.rid):
                    getter.stop()
