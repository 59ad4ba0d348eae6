# Made by tools/unasync.py from ../_async/settling.py: change that one, then run the script.
"""Settling: archive, delete, reject or release messages that were read or are known by their ids."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from ...errors import OpenDataError, StaleLease
from ...protocol.messages import Outcome
from ...protocol.messages import queue_messages as q
from ...protocol.messages.queue_messages import Ending
from .. import checks
from ..checks import Seconds, Target
from ..message_models import Message, Settled, together
from .base import Base

#: how many ids are sent in one call
_ITEMS = 1000
#: what an iterator holds is settled on its own connection with these outcomes
_OUTCOMES = {
    Ending.ARCHIVE: Outcome.ACK, Ending.REQUEUE: Outcome.REQUEUE, Ending.REJECT: Outcome.REJECT,
    Ending.RELEASE: Outcome.RELEASE,
}  # fmt: skip


class Settling(Base):
    """Calls that settle one message or many.

    A message is given as the :class:`Message` that a read returned, which identifies its lease, or as an id, which
    means the lease of whoever read it. A message that a consumer's connection holds can only be settled with the
    ``token`` of its lease. A call for one message raises an error; a call for many settles the others and returns the
    errors (:class:`Settled`).

    Messages from :meth:`consume` are archived, rejected and released without waiting for the broker's answer. So these
    calls do not report that the lease has ended in another way, or that the queue was dropped.
    """

    def archive(self, queue: str, message: Target, *, token: int | None = None) -> None:
        """Archive a message as done; the queue's done retention says how long it is kept. It may also be waiting.

        Raises:
            MessageNotFound: the message is not in the queue (any more).
            StaleLease: the lease has ended, and somebody else may have the message.
            LeaseHeld: a consumer's connection holds it.
        """
        self._end_one(queue, message, Ending.ARCHIVE, token)

    def archive_many(self, queue: str, messages: Iterable[Target]) -> Settled:
        """As :meth:`archive`, for many messages."""
        return self._end(queue, messages, Ending.ARCHIVE)

    def ack(self, message: Message) -> None:
        """:meth:`archive` a message that was read."""
        self._end_one(message.queue, message, Ending.ARCHIVE, None)

    def delete(self, queue: str, message: Target, *, token: int | None = None) -> None:
        """Remove a message without history. It may also be waiting. Raises as :meth:`archive`."""
        self._end_one(queue, message, Ending.DELETE, token)

    def delete_many(self, queue: str, messages: Iterable[Target]) -> Settled:
        """As :meth:`delete`, for many messages."""
        return self._end(queue, messages, Ending.DELETE)

    def reject(self, queue: str, message: Target, *, requeue: bool = False, token: int | None = None) -> None:
        """Reject a message: it fails, and is published to the queue's dead-letter exchange. Raises as :meth:`archive`.

        Args:
            requeue: return it to the queue instead, after the retry delay; it fails if no attempts are left.
        """
        self._end_one(queue, message, Ending.REQUEUE if requeue else Ending.REJECT, token)

    def reject_many(self, queue: str, messages: Iterable[Target], *, requeue: bool = False) -> Settled:
        """As :meth:`reject`, for many messages."""
        return self._end(queue, messages, Ending.REQUEUE if requeue else Ending.REJECT)

    def release(self, queue: str, message: Target, *, delay: Seconds = 0, token: int | None = None) -> None:
        """Return a message unstarted, which costs no attempt. Raises as :meth:`archive`.

        Args:
            delay: it can be read again after this many seconds.
        """
        self._end_one(queue, message, Ending.RELEASE, token, delay)

    def release_many(self, queue: str, messages: Iterable[Target], *, delay: Seconds = 0) -> Settled:
        """As :meth:`release`, for many messages."""
        return self._end(queue, messages, Ending.RELEASE, delay)

    def set_vt(self, queue: str, message: Target, vt: Seconds, *, token: int | None = None) -> datetime:
        """Make the lease of a read end, or a waiting message become visible, ``vt`` seconds from now (0: at once).

        Returns when that is. A lease that ends has cost an attempt. Raises as :meth:`archive`.
        """
        settled = self._end_one(queue, message, Ending.SET_VT, token, vt)
        assert settled.until is not None
        return settled.until

    def set_vt_many(self, queue: str, messages: Iterable[Target], vt: Seconds) -> Settled:
        """As :meth:`set_vt`, for many messages."""
        return self._end(queue, messages, Ending.SET_VT, vt)

    def extend(self, message: Message, vt: Seconds) -> datetime:
        """Extend the lease of a message that was read to ``vt`` seconds from now."""
        return self.set_vt(message.queue, message, vt)

    # ------------------------------------------------------------ implementation
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
        settled = together(parts)
        for target in held:
            if target.id in settled.done:
                target.source.forget((target.queue, target.id, target.token))
        return settled

    def _end_held(self, messages: list[Message], outcome: Outcome) -> Settled:
        """Settle what iterators hold on their connections, which gets no answer."""
        done: list[int] = []
        refused: dict[int, OpenDataError] = {}
        for message in messages:
            if message.source.settle(outcome, (message.queue, message.id, message.token)):
                done.append(message.id)
            else:
                text = f"the lease of message {message.id} has ended: this iterator does not hold it any more"
                refused[message.id] = StaleLease(text, queue=message.queue, message_id=message.id)
        return Settled(tuple(done), refused)
