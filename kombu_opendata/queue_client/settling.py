"""Calls that archive, delete, reject or release messages that were read or are known by their ids."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from ..errors import OpenDataError, StaleLease
from ..protocol.messages import Ending, Outcome, SettleMessages
from . import checks
from .base import Base
from .checks import Seconds, Target
from .message_models import Message, Settled, together

#: number of ids in one request
_ITEMS = 1000
#: outcomes for the messages of an iterator, which are settled on its connection
_OUTCOMES = {
    Ending.ARCHIVE: Outcome.ACK, Ending.REQUEUE: Outcome.REQUEUE, Ending.REJECT: Outcome.REJECT,
    Ending.RELEASE: Outcome.RELEASE,
}  # fmt: skip


class Settling(Base):
    """Calls that settle one message or many.

    The argument is the :class:`Message` that a read returned, which identifies its lease, or an id, which means the
    lease of any reader. A message that a consumer's connection holds can only be settled with the ``token`` of its
    lease. A call for one message raises its error; a call for many settles the others and returns the errors
    (:class:`Settled`).

    Messages from :meth:`consume` are archived, rejected and released without waiting for the broker's reply. These
    calls therefore do not report that the lease has ended in another way, or that the queue was deleted.
    """

    def archive(self, queue: str, message: Target, *, token: int | None = None) -> None:
        """Archive a message as done; the queue's done retention applies. The message may also be ready or delayed.

        Raises:
            MessageNotFound: the message is not in the queue.
            StaleLease: the lease has ended, and another client may hold the message.
            LeaseHeld: a consumer's connection holds it.
        """
        self._end_one(queue, message, Ending.ARCHIVE, token)

    def archive_many(self, queue: str, messages: Iterable[Target]) -> Settled:
        """Archive many messages as :meth:`archive` does."""
        return self._end(queue, messages, Ending.ARCHIVE)

    def ack(self, message: Message) -> None:
        """Archive a message that was read, as :meth:`archive` does."""
        self._end_one(message.queue, message, Ending.ARCHIVE, None)

    def delete(self, queue: str, message: Target, *, token: int | None = None) -> None:
        """Delete a message without history. It may also be ready or delayed. Raises as :meth:`archive`."""
        self._end_one(queue, message, Ending.DELETE, token)

    def delete_many(self, queue: str, messages: Iterable[Target]) -> Settled:
        """Delete many messages as :meth:`delete` does."""
        return self._end(queue, messages, Ending.DELETE)

    def reject(self, queue: str, message: Target, *, requeue: bool = False, token: int | None = None) -> None:
        """Reject a message: it fails, and is published to the queue's dead-letter exchange. Raises as :meth:`archive`.

        Args:
            requeue: return it to the queue instead, after the retry delay; it fails if no attempts are left.
        """
        self._end_one(queue, message, Ending.REQUEUE if requeue else Ending.REJECT, token)

    def reject_many(self, queue: str, messages: Iterable[Target], *, requeue: bool = False) -> Settled:
        """Reject many messages as :meth:`reject` does."""
        return self._end(queue, messages, Ending.REQUEUE if requeue else Ending.REJECT)

    def release(self, queue: str, message: Target, *, delay: Seconds = 0, token: int | None = None) -> None:
        """Release a message without counting an attempt. Raises as :meth:`archive`.

        Args:
            delay: seconds after which it can be read again.
        """
        self._end_one(queue, message, Ending.RELEASE, token, delay)

    def release_many(self, queue: str, messages: Iterable[Target], *, delay: Seconds = 0) -> Settled:
        """Release many messages as :meth:`release` does."""
        return self._end(queue, messages, Ending.RELEASE, delay)

    def set_vt(self, queue: str, message: Target, vt: Seconds, *, token: int | None = None) -> datetime:
        """Set the end of a read's lease, or the due time of a message, to ``vt`` seconds from now; return that time.

        0 means immediately. A lease that ends counts an attempt. Raises as :meth:`archive`.
        """
        settled = self._end_one(queue, message, Ending.SET_VT, token, vt)
        assert settled.until is not None
        return settled.until

    def set_vt_many(self, queue: str, messages: Iterable[Target], vt: Seconds) -> Settled:
        """Set the end of the leases of many messages as :meth:`set_vt` does."""
        return self._end(queue, messages, Ending.SET_VT, vt)

    def extend(self, message: Message, vt: Seconds) -> datetime:
        """Extend the lease of a message that was read to ``vt`` seconds from now."""
        return self.set_vt(message.queue, message, vt)

    # ------------------------------------------------------------ implementation
    def _end_one(self, queue: str, message: Target, ending: Ending, token: int | None, delay: Seconds = 0) -> Settled:
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
            call = SettleMessages(0, queue, ending, pairs[start : start + _ITEMS], wait)
            parts.append(Settled.of(self.calls.call(call)))
        settled = together(parts)
        for target in held:
            if target.id in settled.done:
                target.source.forget((target.queue, target.id, target.token))
        return settled

    def _end_held(self, messages: list[Message], outcome: Outcome) -> Settled:
        """Settle messages of iterators on their connections; the broker sends no reply."""
        done: list[int] = []
        refused: dict[int, OpenDataError] = {}
        for message in messages:
            if message.source.settle(outcome, (message.queue, message.id, message.token)):
                done.append(message.id)
            else:
                text = f"the lease of message {message.id} has ended: this iterator does not hold it any more"
                refused[message.id] = StaleLease(text, queue=message.queue, message_id=message.id)
        return Settled(tuple(done), refused)
