"""Calls that read messages: leased for a time, popped, or pushed to an iterator."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Literal

from ...protocol.messages import queue_messages as q
from .. import checks
from ..checks import Seconds
from ..message_models import Message, message_delivered, messages_read
from ..requests import header_texts, read_request
from .base import AsyncBase


class AsyncReading(AsyncBase):
    """Calls that deliver messages."""

    async def read(
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
        return await self._read(queue, vt, qty, 0.0, where)

    async def read_with_poll(
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
        return await self._read(queue, vt, qty, max_poll_seconds, where)

    async def read_grouped(
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
        return await self._claimed(message)

    async def pop(self, queue: str, qty: int = 1) -> list[Message]:
        """Take up to ``qty`` messages and acknowledge them immediately.

        They are kept as done, so a message that this client loses can be recovered. A lost connection loses none.
        """
        return await self._read(queue, 60, qty, 0.0, None, pop=True)

    async def interrupt(self) -> None:
        """Interrupt all waiting reads of this client; they return no messages."""
        await self._calls.stop_waiting()

    async def _read(
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
        return await self._claimed(message)

    async def _claimed(self, message: q.Read) -> list[Message]:
        answer = await self._calls.read(message)
        return messages_read(message.queue, answer)

    async def consume(
        self,
        queue: str,
        *,
        prefetch: int = 10,
        timeout: Seconds | None = None,  # noqa: ASYNC109
    ) -> AsyncGenerator[Message, None]:
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
        checks.whole(prefetch, "the prefetch", 1, 10_000)
        seconds = None if timeout is None else checks.milliseconds(timeout, "the timeout", high=1e9) / 1000
        subscription = await self._calls.subscribe(checks.name(queue, "the queue's name"), prefetch)
        try:
            while True:
                delivery = await subscription.next(seconds)
                if delivery is None:
                    return
                yield message_delivered(delivery, subscription)
        finally:
            await subscription.close()
