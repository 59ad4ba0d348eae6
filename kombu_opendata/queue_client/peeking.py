"""Read-only calls: peek, get a message by id, list by state, metrics, due counts, explain."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

from ..errors import MessageNotFound, RequestError
from ..protocol import messages as m
from ..protocol.envelope import header_text
from ..protocol.messages import queue_messages as q
from . import checks
from .base import Base
from .message_models import (
    Message,
    MessageState,
    StatePage,
    StoredMessage,
    messages_peeked,
    state_of,
    stored_message_of,
)  # fmt: skip
from .queue_models import AllMetrics, QueueMetrics, RecentFigures, all_metrics, metrics_of, recent_figures
from .schedule_models import DueCounts, PeriodicTasks, due_counts, periodic_tasks

MAX_PAGE = 1000

State = Literal["available", "delayed", "in_flight", "done", "failed", "archived_failed"]


class Peeking(Base):
    """Calls that change nothing."""

    def peek(self, queue: str, qty: int = 1, *, after: int = -1) -> list[Message]:
        """Return ready and delayed messages in the order of their ids, without leasing them.

        Args:
            qty: 1 to 1,000.
            after: the last id of the previous page.
        """
        checks.whole(qty, "qty", 1, MAX_PAGE)
        checks.whole(after, "after", -1, (1 << 63) - 1)
        messages: list[Message] = []
        while len(messages) < qty:
            answer: q.Peeked = self.calls.call(
                q.Peek(0, checks.name(queue, "the queue's name"), after, qty - len(messages))
            )
            messages += messages_peeked(queue, answer)
            if not answer.more or not answer.messages:
                break
            after = answer.messages[-1][0][0]
        return messages

    def get(self, id: int, queue: str = "") -> StoredMessage:
        """Return a message by its id: payload, headers, and its states in all queues or in one.

        Raises:
            MessageNotFound: the message does not exist (any more).
        """
        checks.whole(id, "a message id", 0, (1 << 63) - 1)
        answer: q.FoundMessage = self.calls.call(q.GetMessage(0, id, queue))
        if answer.envelope is None:
            raise MessageNotFound(
                f"no message {id}{f' in queue {queue!r}' if queue else ''}", message_id=id, queue=queue
            )
        return stored_message_of(id, queue, answer)

    def list_by_state(self, queue: str, state: State, *, limit: int = 100, after: int | None = None) -> StatePage:
        """Return a page of the messages in one state; settled ones are ordered by the time of settlement, others by id.

        Args:
            limit: 1 to 1,000. A page may have fewer messages if the search takes long.
            after: the ``after`` of the previous page.
        """
        call = q.ListByState(
            0, checks.name(queue, "the queue's name"), state, -1 if after is None else after,
            checks.whole(limit, "the limit", 1, MAX_PAGE),
        )  # fmt: skip
        answer: q.MessageStatePage = self.calls.call(call)
        return StatePage(
            tuple(state_of(queue, row) for row in answer.rows), answer.after if answer.after >= 0 else None
        )

    def iter_by_state(self, queue: str, state: State) -> Generator[MessageState, None, None]:
        """Iterate over all messages in one state, requested page by page."""
        after = None
        while True:
            page = self.list_by_state(queue, state, limit=MAX_PAGE, after=after)
            yield from page.messages
            if page.after is None:
                return
            after = page.after

    def metrics(self, queue: str) -> QueueMetrics:
        """Return the metrics of a queue.

        Raises:
            NotFound: there is no such queue.
        """
        answer: q.Metrics = self.calls.call(q.GetMetrics(0, [checks.name(queue, "the queue's name")]))
        return metrics_of(queue, answer.queues[queue], answer.at_ms)

    def metrics_all(self) -> dict[str, QueueMetrics]:
        """Return the metrics of all queues, by name."""
        answer: q.Metrics = self.calls.call(q.GetMetrics(0, []))
        return {name: metrics_of(name, figures, answer.at_ms) for name, figures in sorted(answer.queues.items())}

    def metrics_update(self, previous: AllMetrics | None = None) -> AllMetrics:
        """Return the metrics of all queues; the broker sends only those that changed since a previous reply.

        This suits programs that poll: with a thousand idle queues it costs the broker a sixth of :meth:`metrics_all`.
        """
        answer: q.Metrics = self.calls.call(q.GetMetrics(0, [], previous.mark if previous is not None else 0))
        return all_metrics(previous, answer)

    def figures(self, queues: Iterable[str] = (), *, since: datetime | None = None) -> RecentFigures:
        """Return the metrics of queues, and of all queues together, over the last ten minutes.

        The broker keeps them in memory, from its startup on: for idle queues, for the thousand busiest of the others,
        and for the rest only over the last minute.

        Args:
            queues: at most 1,000; queues that do not exist are omitted.
            since: only samples after this time.
        """
        names = [checks.name(queue, "the queue's name") for queue in queues]
        since_ms = 0 if since is None else round(1000 * since.timestamp())
        answer: q.Figures = self.calls.call(q.GetFigures(0, names, since_ms))
        return recent_figures(answer)

    def count_due(self, queues: Iterable[str] = (), *, bucket_seconds: float = 3600, buckets: int = 24) -> DueCounts:
        """Return the number of delayed messages of these queues, or of all, that are due in the next hours.

        Args:
            bucket_seconds: the length of a bucket of time; buckets begin at multiples of it since the epoch.
            buckets: 1 to 1,000; the first one contains the current time.

        Raises:
            NotFound: there is no such queue.
        """
        names = [checks.name(queue, "the queue's name") for queue in queues]
        length = round(1000 * bucket_seconds)
        answer: m.DueCountsReply = self.calls.call(m.CountDue(0, names, length, buckets))
        return due_counts(answer, length)

    def periodic_tasks(self) -> PeriodicTasks:
        """Return the periodic tasks that Celery's beat has published since the broker started, at most 1,000.

        The broker recognizes them by the header ``celery_beat_task`` of newer versions of Celery, or
        ``periodic_task_name`` of django-celery-beat, which also has the name of the entry.
        """
        answer: m.PeriodicTaskList = self.calls.call(m.ListPeriodicTasks(0))
        return periodic_tasks(answer)

    def explain(
        self, queue: str = "", *, id: int | None = None, headers: Mapping[str, Any] | None = None, filter: str = ""
    ) -> dict[str, Any]:
        """Return an explanation why a queue receives a message or not.

        Args:
            queue: the queue; alternatively, a ``filter`` to try out.
            id: the id of a stored message; alternatively, the ``headers`` of a message as sent, including ``exchange``,
                ``routing_key`` and ``priority``.

        Returns:
            ``matches``: True if the queue receives the message, also through alternate exchanges. ``filter``: the
            explanation of the queue's filter, None if it has no filter; and ``mode``. ``bindings``: the ``exchange``,
            ``type`` and ``routing_key`` of each, whether it ``matches``, and an ``explanation``; at most 50, those that
            match first, and ``bindings_omitted`` counts the rest. For a filter alone there are only ``matches`` and
            ``filter``.

            An explanation has ``text``, ``value`` (True, False, or None for unknown), ``headers`` (those that it read,
            None for a missing header), ``parts`` (explanations) and ``omitted`` (the number of parts that are not
            shown); see :meth:`kombu_opendata.selectors.Explanation.from_dict`.

        Raises:
            NotFound: there is no such queue or message.
            SelectorError: the filter is not valid; the text shows the position.
            RequestError: not exactly one of queue and filter was given; or both a message id and headers were.
        """
        if id is not None:
            checks.whole(id, "a message id", 0, (1 << 63) - 1)
        texts = metadata_texts(headers) if headers or id is None else {}
        answer: m.Explained = self.calls.call(m.Explain(0, queue, -1 if id is None else id, texts, filter))
        return answer.report


def metadata_texts(headers: Mapping[str, Any] | None) -> dict[str, str]:
    """Return headers as filters see them: as texts, with those that every message has.

    None and nested values are omitted.
    """
    seen = {"exchange": "", "routing_key": "", "priority": "0"}
    if headers is not None and not isinstance(headers, Mapping):
        raise RequestError(f"headers must be a mapping, not {type(headers).__name__}")
    for name, value in (headers or {}).items():
        if (text := header_text(value)) is not None:
            seen[name] = text
    return seen
