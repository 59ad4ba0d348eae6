# Made by tools/unasync.py from ../_async/settling.py: change that one, then run the script.
"""Settling: what becomes of a message that was read, or of one that is known by its id."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from ...errors import OpenDataError, StaleLease
from ...protocol import queue_messages as q
from ...protocol.messages import Outcome
from ...protocol.queue_messages import Ending
from .. import checks
from ..checks import Seconds, Target
from ..models import Message, Settled
from .base import Base

#: ids in one message on the wire
_ITEMS = 1000
#: of what an iterator holds: settled on its own connection
_OUTCOMES = {
    Ending.ARCHIVE: Outcome.ACK, Ending.REQUEUE: Outcome.REQUEUE, Ending.REJECT: Outcome.REJECT,
    Ending.RELEASE: Outcome.RELEASE,
}  # fmt: skip


class Settling(Base):
    """Calls that end leases, one message or many.

    A message is named by the :class:`Message` that a read returned, which stands for its lease, or by its id, which
    stands for "whoever read it for a time". What somebody holds over a connection of theirs is refused without the
    lease's ``token``. A call for one message raises what was wrong; one for many returns it (:class:`Settled`), having
    settled the others.

    What :meth:`consume` gave is archived, rejected and released without waiting for the broker, which gets it all the
    same. So it is not told when somebody else has ended the lease, or dropped the queue.
    """

    def archive(self, queue: str, message: Target, *, token: int | None = None) -> None:
        """It is done: it leaves the queue and is kept as long as the queue's done retention says. Also while it waits.

        Raises:
            MessageNotFound: the queue has it not, or no more.
            StaleLease: the lease is over; somebody else may have the message.
            LeaseHeld: somebody holds it over a connection.
        """
        self._end_one(queue, message, Ending.ARCHIVE, token)

    def archive_many(self, queue: str, messages: Iterable[Target]) -> Settled:
        """As :meth:`archive`, for many."""
        return self._end(queue, messages, Ending.ARCHIVE)

    def ack(self, message: Message) -> None:
        """:meth:`archive` what was read."""
        self._end_one(message.queue, message, Ending.ARCHIVE, None)

    def delete(self, queue: str, message: Target, *, token: int | None = None) -> None:
        """Remove it without history. Also while it waits. Raises as :meth:`archive`."""
        self._end_one(queue, message, Ending.DELETE, token)

    def delete_many(self, queue: str, messages: Iterable[Target]) -> Settled:
        """As :meth:`delete`, for many."""
        return self._end(queue, messages, Ending.DELETE)

    def reject(self, queue: str, message: Target, *, requeue: bool = False, token: int | None = None) -> None:
        """It failed: to the failed ones, and to the queue's dead-letter exchange. Raises as :meth:`archive`.

        Args:
            requeue: back to the queue instead, after its retry delay; to the failed ones when no attempts are left.
        """
        self._end_one(queue, message, Ending.REQUEUE if requeue else Ending.REJECT, token)

    def reject_many(self, queue: str, messages: Iterable[Target], *, requeue: bool = False) -> Settled:
        """As :meth:`reject`, for many."""
        return self._end(queue, messages, Ending.REQUEUE if requeue else Ending.REJECT)

    def release(self, queue: str, message: Target, *, delay: Seconds = 0, token: int | None = None) -> None:
        """Hand it back unstarted: it costs no attempt. Raises as :meth:`archive`.

        Args:
            delay: it can be read again in so many seconds.
        """
        self._end_one(queue, message, Ending.RELEASE, token, delay)

    def release_many(self, queue: str, messages: Iterable[Target], *, delay: Seconds = 0) -> Settled:
        """As :meth:`release`, for many."""
        return self._end(queue, messages, Ending.RELEASE, delay)

    def set_vt(self, queue: str, message: Target, vt: Seconds, *, token: int | None = None) -> datetime:
        """Have the lease of a read end in ``vt`` seconds from now, 0 at once; of what waits, have it visible then.

        Returns when that is. A lease that ends has cost an attempt. Raises as :meth:`archive`.
        """
        settled = self._end_one(queue, message, Ending.SET_VT, token, vt)
        assert settled.until is not None
        return settled.until

    def set_vt_many(self, queue: str, messages: Iterable[Target], vt: Seconds) -> Settled:
        """As :meth:`set_vt`, for many."""
        return self._end(queue, messages, Ending.SET_VT, vt)

    def extend(self, message: Message, vt: Seconds) -> datetime:
        """:meth:`set_vt` of what was read: more time for it, ``vt`` seconds from now."""
        return self.set_vt(message.queue, message, vt)

    # ------------------------------------------------------------ how
    def _end_one(
        self, queue: str, message: Target, ending: Ending, token: int | None, delay: Seconds = 0
    ) -> Settled:
        settled = self._end(queue, [message], ending, delay, token)
        for error in settled.refused.values():
            raise error
        return settled

    def _end(
        self, queue: str, messages: Iterable[Target], ending: Ending, delay: Seconds = 0, token: int | None = None
    ) -> Settled:
        checks.name(queue, "the queue's name")
        wait = checks.milliseconds(delay, "the delay" if ending == Ending.RELEASE else "vt")
        targets = list(messages)
        items = dict(checks.items_of(queue, targets, token))
        held = [target for target in targets if isinstance(target, Message) and target.source is not None]
        parts: list[Settled] = []
        if held and ending in _OUTCOMES and not wait:
            parts.append(self._end_held(held, _OUTCOMES[ending]))
            for target in held:
                items.pop(target.id, None)
        pairs = list(items.items())
        for start in range(0, len(pairs), _ITEMS):
            call = q.SettleMessages(0, queue, ending, pairs[start : start + _ITEMS], wait)
            parts.append(Settled.of(self._calls.call(call)))
        settled = _together(parts)
        for target in held:
            if target.id in settled.done:
                target.source.forget((target.queue, target.id, target.token))
        return settled

    def _end_held(self, messages: list[Message], outcome: Outcome) -> Settled:
        """What iterators hold is settled on their connections, which is not answered."""
        done: list[int] = []
        refused: dict[int, OpenDataError] = {}
        for message in messages:
            if message.source.settle(outcome, (message.queue, message.id, message.token)):
                done.append(message.id)
            else:
                text = f"the lease of message {message.id} is over: this iterator holds it no more"
                refused[message.id] = StaleLease(text, queue=message.queue, message_id=message.id)
        return Settled(tuple(done), refused)


def _together(parts: list[Settled]) -> Settled:
    done: list[int] = []
    refused: dict[int, OpenDataError] = {}
    until = None
    for part in parts:
        done += part.done
        refused |= part.refused
        until = part.until or until
    return Settled(tuple(done), refused, until)
