"""Calls that read messages: leased for a time, popped, pushed to an iterator, or only shown."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Literal

from ..errors import MessageNotFound, RequestError
from ..protocol import messages as m
from ..protocol.envelope import header_text
from . import checks
from .base import Base
from .checks import Seconds
from .message_models import (
    Message,
    MessageState,
    StatePage,
    StoredMessage,
    message_delivered,
    messages_peeked,
    messages_read,
    state_of,
    stored_message_of,
)

#: limit for the messages of one request
MAX_QUANTITY = 1000
MAX_POLL_SECONDS = 3600

State = Literal["ready", "available", "delayed", "in_flight", "done", "failed", "archived_failed"]


class Reading(Base):
    """Calls that deliver messages, and calls that only show them."""

    def read(
        self, queue: str, vt: Seconds = 30, qty: int = 1, *, where: str | Mapping[str, Any] | None = None
    ) -> list[Message]:
        """Lease up to ``qty`` messages for ``vt`` seconds; a message that is not settled by then can be read again.

        The lease outlives this client, ends exactly at its timeout, and counts an attempt. Messages are ordered by
        priority, then by id. The call returns at most 4 MiB, so it may return fewer messages than requested.

        Args:
            vt: the visibility timeout, from a millisecond to thirty days.
            qty: 1 to 1,000.
            where: only messages whose headers have these values, or that match this filter. In a long queue, only the
                first 10,000 ready messages are examined.
        """
        return self._read(queue, vt, qty, 0, where)

    def read_with_poll(
        self,
        queue: str,
        vt: Seconds = 30,
        qty: int = 1,
        *,
        max_poll_seconds: Seconds = 5,
        where: str | Mapping[str, Any] | None = None,
    ) -> list[Message]:
        """Read as :meth:`read`, but wait for the first message, up to an hour; the broker does not poll its queue.

        Other calls of this client are not blocked. Messages that a cancelled call has leased are released.
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

        The groups are the partitions of the queue, which has the header as its ``partition_by``. No message of a group
        is delivered while another message of it is in flight, or an earlier one is delayed. Priorities have no effect.
        :meth:`read` and consumers use the limit of ``partition_concurrency`` instead.

        Args:
            order: ``fill`` takes all messages of the first group, then those of the next one; ``round_robin`` takes one
                message of each group in turn; ``head`` takes only the first message of each group.
            header: the name of the header.
            max_poll_seconds: seconds to wait for the first message; the broker checks at most ten times a second.

        Raises:
            PreconditionFailed: the queue is not partitioned by the header.
        """
        group = {"grouped": checks.name(order, "order"), "group_header": checks.name(header, "header")}
        return self._read(queue, vt, qty, max_poll_seconds, **group)

    def pop(self, queue: str, qty: int = 1) -> list[Message]:
        """Take up to ``qty`` messages and acknowledge them immediately.

        They are kept as done, so a message that this client does not process can be recovered. No message is lost with
        the connection. If the broker is killed during the call, some messages may be done that the call did not return.
        """
        return self._read(queue, 60, qty, pop=True)

    def interrupt(self) -> None:
        """Interrupt all waiting reads of this client; they return no messages."""
        self.connections.stop_waiting()

    def _read(
        self,
        queue: str,
        vt: Seconds,
        qty: int,
        poll: Seconds = 0,
        where: str | Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> list[Message]:
        checks.name(queue, "the queue's name")
        checks.whole(qty, "qty", 1, MAX_QUANTITY)
        vt_ms = checks.milliseconds(vt, "vt", low=0.001)
        wait_ms = checks.milliseconds(poll, "max_poll_seconds", high=MAX_POLL_SECONDS)
        if isinstance(where, str):
            fields["selector"] = checks.name(where, "the selector")
        elif where is not None:
            fields["equal"] = header_texts(where)
        return messages_read(queue, self.calls.read(m.Read(0, queue, qty, vt_ms, wait_ms, **fields)))

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
            ConnectionLost: the connection could not be resumed.
        """
        queue, prefetch, seconds = consumer_arguments(queue, prefetch, timeout)
        subscription = self.connections.subscribe(queue, prefetch)
        try:
            while (delivery := subscription.next(seconds)) is not None:
                yield message_delivered(delivery, subscription)
        finally:
            subscription.close()

    # ------------------------------------------------------------ without a lease
    def peek(self, queue: str, qty: int = 1, *, after: int = -1) -> list[Message]:
        """Return ready and delayed messages in the order of their ids, without leasing them.

        Args:
            qty: 1 to 1,000.
            after: the last id of the previous page.
        """
        checks.whole(qty, "qty", 1, MAX_QUANTITY)
        checks.whole(after, "after", -1, checks.MAX_ID)
        messages: list[Message] = []
        while len(messages) < qty:
            answer = self.calls.call(m.Peek(0, checks.name(queue, "the queue's name"), after, qty - len(messages)))
            messages += messages_peeked(queue, answer)
            if not answer.more or not answer.messages:
                break
            after = answer.messages[-1][0][0]
        return messages

    def get(self, id: int, queue: str = "") -> StoredMessage:
        """Return a message by its id, with its payload, headers, and states in all queues or in one.

        Raises:
            MessageNotFound: the message does not exist.
        """
        checks.whole(id, "a message id", 0, checks.MAX_ID)
        answer = self.calls.call(m.GetMessage(0, id, queue))
        if answer.envelope is None:
            raise MessageNotFound(
                f"no message {id}{f' in queue {queue!r}' if queue else ''}", message_id=id, queue=queue
            )
        return stored_message_of(id, queue, answer)

    def list_by_state(self, queue: str, state: State, *, limit: int = 100, after: int | None = None) -> StatePage:
        """Return a page of the messages in one state; settled ones are ordered by the time of settlement, others by id.

        Args:
            state: ``available`` is the name of ``ready`` in earlier versions.
            limit: 1 to 1,000. A page may have fewer messages if the search takes long.
            after: the ``after`` of the previous page.
        """
        call = m.ListByState(
            0,
            checks.name(queue, "the queue's name"),
            checks.wire_state(state),
            -1 if after is None else after,
            checks.whole(limit, "the limit", 1, MAX_QUANTITY),
        )
        answer = self.calls.call(call)
        return StatePage(
            tuple(state_of(queue, row) for row in answer.rows), answer.after if answer.after >= 0 else None
        )

    def iter_by_state(self, queue: str, state: State) -> Generator[MessageState, None, None]:
        """Iterate over all messages in one state, requested page by page."""
        after = None
        while True:
            page = self.list_by_state(queue, state, limit=MAX_QUANTITY, after=after)
            yield from page.messages
            if page.after is None:
                return
            after = page.after

    def explain(
        self, queue: str = "", *, id: int | None = None, headers: Mapping[str, Any] | None = None, filter: str = ""
    ) -> dict[str, Any]:
        """Return an explanation why a queue receives a message or not.

        Args:
            queue: the queue; alternatively, a ``filter`` to try out.
            id: the id of a stored message; alternatively, the ``headers`` of a message as sent, including ``exchange``,
                ``routing_key`` and ``priority``.

        Returns:
            A dictionary. If only a ``filter`` was given, it has the first two of these keys:

            * ``matches``: True if the queue receives the message, also through alternate exchanges.
            * ``filter``: the explanation of the filter; None if the queue has none.
            * ``mode``: the queue's filter mode, ``any`` or ``all``.
            * ``bindings``: at most 50, those that match first: ``exchange``, ``type``, ``routing_key``, whether each
            ``matches``, and an ``explanation``.
            * ``bindings_omitted``: the number of further bindings.

            An explanation has these keys; see :meth:`kombu_opendata.selectors.Explanation.from_dict`:

            * ``text``: the filter, or a part of it.
            * ``value``: True, False, or None for unknown.
            * ``headers``: the headers that it read; None for a missing header.
            * ``parts``: the explanations of its parts.
            * ``omitted``: the number of parts that are not shown.

        Raises:
            SelectorError: the filter is not valid; the text shows the position.
            RequestError: both or neither of queue and filter are given, or both a message id and headers.
        """
        if id is not None:
            checks.whole(id, "a message id", 0, checks.MAX_ID)
        texts = metadata_texts(headers) if headers or id is None else {}
        return self.calls.call(m.Explain(0, queue, -1 if id is None else id, texts, filter)).report


def consumer_arguments(queue: str, prefetch: int, timeout: Seconds | None) -> tuple[str, int, float | None]:
    """Return the arguments of a consumer, after their validation; raise RequestError for one that is not valid."""
    checks.whole(prefetch, "the prefetch", 1, 10_000)
    seconds = None if timeout is None else checks.milliseconds(timeout, "the timeout", high=1e9) / 1000
    return checks.name(queue, "the queue's name"), prefetch, seconds


def header_texts(where: Mapping[str, Any]) -> dict[str, str]:
    """Return header values as texts, as they are stored."""
    if not isinstance(where, Mapping):
        raise RequestError(f"where must be a filter, or a mapping of header names to values, not {where!r}")
    texts = {}
    for name, value in where.items():
        text = header_text(value)
        if text is None:
            raise RequestError(f"header {name!r} can be compared with a text, a number or a boolean, not {value!r}")
        texts[name] = text
    if not texts:
        raise RequestError("where has no headers: leave it out to read any message")
    return texts


def metadata_texts(headers: Mapping[str, Any] | None) -> dict[str, str]:
    """Return headers as filters read them: as texts, without None and nested values.

    The headers ``exchange``, ``routing_key`` and ``priority``, which every message has, are added.
    """
    texts = {"exchange": "", "routing_key": "", "priority": "0"}
    if headers is not None and not isinstance(headers, Mapping):
        raise RequestError(f"headers must be a mapping, not {type(headers).__name__}")
    for name, value in (headers or {}).items():
        if (text := header_text(value)) is not None:
            texts[name] = text
    return texts
