"""Calls that read messages: leased for a time, popped, or pushed to an iterator."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Literal

from ..protocol.messages import queue_messages as q
from . import checks
from .base import Base
from .checks import Seconds
from .message_models import Message, message_delivered, messages_read
from .requests import header_texts, read_request


class Reading(Base):
    """Calls that deliver messages."""

    def read(
        self,
        queue: str,
        vt: Seconds = 30,
        qty: int = 1,
        *,
        where: str | Mapping[str, Any] | None = None,
    ) -> list[Message]:
        """Lease up to ``qty`` messages for ``vt`` seconds; a message that is not settled by then can be read again.

        The lease outlives this client, ends exactly at its timeout, and counts an attempt. Messages are ordered by
        priority, then by id. There may be fewer than requested if they are large (4 MiB in all).

        Args:
            vt: the visibility timeout, from a millisecond to thirty days.
            qty: 1 to 1,000.
            where: only messages whose headers have these values, or that match this filter. In a long queue, only the
                first 10,000 ready messages are examined.

        Raises:
            NotFound: there is no such queue.
        """
        return self._read(queue, vt, qty, 0.0, where)

    def read_with_poll(
        self,
        queue: str,
        vt: Seconds = 30,
        qty: int = 1,
        *,
        max_poll_seconds: Seconds = 5,
        where: str | Mapping[str, Any] | None = None,
    ) -> list[Message]:
        """Read as :meth:`read`, but wait up to an hour for the first message, which the broker reports without polling.

        Other calls of this client are not blocked. If this call is cancelled, the messages that it has leased are
        released.
        """
        return self._read(queue, vt, qty, max_poll_seconds, where)

    def read_grouped(
        self,
        queue: str,
        vt: Seconds = 30,
        qty: int = 1,
        *,
        order: Literal["fill", "round_robin", "head"] = "fill",
        header: str = "group_id",
        max_poll_seconds: Seconds = 0,
    ) -> list[Message]:
        """Read in groups: the messages of a group are delivered in the order of their ids; otherwise as :meth:`read`.

        Messages with the same value of a header form a group, and so do messages without the header. No message of a
        group is delivered while another one is in flight, or an earlier one is delayed. Priorities have no effect.
        :meth:`read` and consumers ignore groups.

        Args:
            order: ``fill`` takes all messages of the first group, then those of the next one; ``round_robin`` takes one
                message of each group in turn; ``head`` takes only the first message of each group.
            header: the name of the header.
            max_poll_seconds: seconds to wait for the first message; the broker checks at most ten times a second.

        Raises:
            NotFound: there is no such queue.
            PreconditionFailed: more than 100,000 of its messages are in flight.
        """
        message = read_request(queue, vt, qty, max_poll_seconds)
        message.grouped, message.group_header = checks.name(order, "order"), checks.name(header, "header")
        return self._claimed(message)

    def pop(self, queue: str, qty: int = 1) -> list[Message]:
        """Take up to ``qty`` messages and acknowledge them immediately.

        They are kept as done, so a message that this client loses can be recovered. A lost connection loses none.
        """
        return self._read(queue, 60, qty, 0.0, None, pop=True)

    def interrupt(self) -> None:
        """Interrupt all waiting reads of this client; they return no messages."""
        self.connections.stop_waiting()

    def _read(
        self,
        queue: str,
        vt: Seconds,
        qty: int,
        poll: Seconds,
        where: str | Mapping[str, Any] | None,
        *,
        pop: bool = False,
    ) -> list[Message]:
        message = read_request(queue, vt, qty, poll)
        message.pop = pop
        if isinstance(where, str):
            message.selector = checks.name(where, "the selector")
        elif where is not None:
            message.equal = header_texts(where)
        return self._claimed(message)

    def _claimed(self, message: q.Read) -> list[Message]:
        answer = self.calls.read(message)
        return messages_read(message.queue, answer)

    def consume(
        self, queue: str, *, prefetch: int = 10, timeout: Seconds | None = None
    ) -> Generator[Message, None, None]:
        """Iterate over the messages of a queue, which the broker pushes as they arrive.

        The iterator's connection holds the messages without a timeout until it is closed; a lost connection is resumed.
        Settle each message with a call of this client. When the iterator is closed, or its process ends, unsettled
        messages return to the queue.

        Args:
            prefetch: the limit for unsettled messages that the broker pushes, 1 to 10,000.
            timeout: end after this many seconds without a message; None waits indefinitely.

        Raises:
            NotFound: there is no such queue.
            ConnectionLost: the connection could not be resumed.
        """
        queue, prefetch, seconds = consumer_arguments(queue, prefetch, timeout)
        subscription = self.connections.subscribe(queue, prefetch)
        try:
            while (delivery := subscription.next(seconds)) is not None:
                yield message_delivered(delivery, subscription)
        finally:
            subscription.close()


def consumer_arguments(queue: str, prefetch: int, timeout: Seconds | None) -> tuple[str, int, float | None]:
    """Return the arguments of a consumer, after their validation; raise RequestError for one that is not valid."""
    checks.whole(prefetch, "the prefetch", 1, 10_000)
    seconds = None if timeout is None else checks.milliseconds(timeout, "the timeout", high=1e9) / 1000
    return checks.name(queue, "the queue's name"), prefetch, seconds
