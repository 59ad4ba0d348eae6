"""Read: messages claimed for a time, at once or when some come; and popped ones."""

from __future__ import annotations

import logging
from asyncio import TimerHandle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import PreconditionFailed, RequestError, StoreError
from ..protocol import queue_messages as q
from ..protocol.messages import Outcome
from ..storage.queue_buckets import Entry
from . import timed
from .model.queue import BrokerQueue
from .model.sessions import ConsumedQueue, Session

if TYPE_CHECKING:
    from .handlers import Handlers
    from .instance import Instance

log = logging.getLogger(__name__)

MAX_QUANTITY = 1000
#: of a lease, a delay, a wait: thirty days
MAX_MS = 30 * 86_400_000
MAX_WAIT_MS = 3_600_000
#: an answer has more bytes of messages only if its first one is larger
PAGE_BYTES = 4 << 20


class Claimed:
    """What a Read has claimed so far."""

    def __init__(self, session: Session, queue: BrokerQueue, msg: q.Read) -> None:
        self._session, self._queue, self._msg = session, queue, msg
        self._holder = Session(timed.session_of(session.client), session.name)
        self._rows: list[q.ReadRow] = []
        self._received: list[int] = []  # of each row
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def is_enough(self) -> bool:
        return len(self._rows) >= self._msg.quantity or self._bytes >= PAGE_BYTES

    def add(self, instance: Instance, entry: Entry, envelope: bytes | None = None) -> None:
        """Claim an available message, whose payload is given or at hand."""
        queue, msg = self._queue, self._msg
        at_hand = queue.claim(entry, self._holder, msg.vt_ms)
        envelope = at_hand or b"" if envelope is None else envelope
        returned = entry.returned or entry.attempts > 1
        self._rows.append((entry.id, entry.claimed_at, entry.attempts, entry.lease_until, envelope, returned))
        self._received.append(entry.received_at)
        self._bytes += len(envelope)
        if msg.pop:
            instance.leases.end(self._holder, queue, entry, Outcome.ACK)
        else:
            instance.timed.note(queue.name, entry)

    def clear(self) -> None:
        """They are gone with their queue."""
        self._rows.clear()
        self._received.clear()

    def answer(self, instance: Instance) -> None:
        """Answer the Read; of messages that were out of memory since they came, the store is asked when that was."""
        if all(self._received):
            self._answer(instance)
        else:
            instance.background.run(self._session, self._msg.rid, self.look_up_and_answer(instance), once=True)

    async def look_up_and_answer(self, instance: Instance) -> None:
        """As :meth:`answer`, in the task of a call."""
        unknown = [row[0] for row, at in zip(self._rows, self._received, strict=True) if not at]
        if unknown:
            try:
                known = await instance.engine.pages.metadata(unknown)
            except StoreError as exc:
                log.error("when messages were received can't be read: %s", exc)
                known = {}
            received = {id: about.received_at_ms for id, about in known.items()}
            self._received = [at or received.get(row[0], 0) for row, at in zip(self._rows, self._received, strict=True)]
        self._answer(instance)

    def _answer(self, instance: Instance) -> None:
        answer = q.ReadMessages(self._msg.rid, self._rows, self._received)
        instance.background.answer(self._session, answer, self._bytes)


class Reader:
    """A Read that waits at its queue, or takes what is there."""

    def __init__(self, instance: Instance, session: Session, queue: BrokerQueue, msg: q.Read) -> None:
        self.session = session
        self.rid = msg.rid
        self._instance = instance
        self._queue = queue
        self._claimed = Claimed(session, queue, msg)
        self._timer: TimerHandle | None = None
        self._wait_ms = msg.wait_ms

    def begin(self) -> None:
        """Stand in line."""
        if self._wait_ms:
            self._timer = self._instance.loop.call_later(self._wait_ms / 1000, self.stop)
        self._queue.getters.append(self)
        self._instance.queues.wake(self._queue)

    def take(self, _queue: ConsumedQueue, entry: Entry) -> bool:
        self._claimed.add(self._instance, entry)
        if not self._claimed.is_enough:
            return False
        self._answer()
        return True

    def nothing(self) -> bool:
        if self._wait_ms and not self._claimed:
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
        self._claimed.answer(self._instance)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


# ---------------------------------------------------------------------- the calls
def check_ms(value: int, low: int, what: str, high: int = MAX_MS) -> None:
    """Refuse a time out of range.

    Raises:
        RequestError: the text says the range.
    """
    if not low <= value <= high:
        raise RequestError(f"{what} is {low} to {high} ms, not {value}", value=value, limit=high)


def check_quantity(value: int, high: int = MAX_QUANTITY) -> None:
    """Refuse a number of messages out of range.

    Raises:
        RequestError: the text says the range.
    """
    if not 1 <= value <= high:
        raise RequestError(f"ask for 1 to {high} messages, not {value}", value=value, limit=high)


def read(self: Handlers, msg: q.Read) -> None:
    if self.instance.background.repeat(self.session, msg.rid):
        return
    check_quantity(msg.quantity)
    check_ms(msg.vt_ms, 1, "the visibility timeout")
    check_ms(msg.wait_ms, 0, "the longest wait", MAX_WAIT_MS)
    queue = self._queue(msg.queue)
    if self.session.suspended:
        raise PreconditionFailed(f"the worker {self.session.name!r} is suspended: resume it", worker=self.session.name)
    queue.used_at_ms = self.engine.clock.now_ms()
    if msg.selector or msg.equal or msg.grouped:
        from .choosing import choose, looker

        work = choose(self, msg, queue, looker(self, msg, queue))
        self.instance.background.run(self.session, msg.rid, work, once=True)
    else:
        Reader(self.instance, self.session, queue, msg).begin()


def stop_reading(self: Handlers, msg: q.StopReading) -> None:
    stop = self.instance.stops.get((self.session.id, msg.read_rid))
    if stop is not None:
        stop.set()
    for queue in self.instance.queues.values():
        for getter in queue.getters:
            if isinstance(getter, Reader) and getter.session is self.session and getter.rid == msg.read_rid:
                getter.stop()
                return


HANDLERS: dict[type, Callable[[Any, Any], None]] = {q.Read: read, q.StopReading: stop_reading}
