"""Messages of a queue in one state, as rows of a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from time import monotonic

from ...errors import PreconditionFailed
from ...protocol.messages.history_messages import MessageInfo
from ...queue_client.message_models import MessageState, moment
from ...selectors.selector import compile_selector
from ..brokers import UserBroker
from .identified import Identified

#: rows of a page
PAGE = 50
#: states that the broker lists; running tasks are read from the history
LISTED = ("available", "delayed", "in_flight", "done", "archived_failed")
#: limits of a search, beyond which it is incomplete
MOST_SEARCHED, SEARCH_SECONDS = 20_000, 2.0


@dataclass(frozen=True)
class MessageRow(Identified):
    """A message of a queue.

    Attributes:
        task, task_id: name and id of a Celery task; empty for other messages.
        since: the time of the delivery, or of the start of its task.
        holder: the consumer that holds it or runs its task.
    """

    id: int
    task: str
    task_id: str
    priority: int
    attempts: int
    received_at: datetime | None
    visible_at: datetime | None
    holder: str
    since: datetime | None
    leased_until: datetime | None
    settled_at: datetime | None


@dataclass(frozen=True)
class MessageRows:
    """A page of messages.

    Attributes:
        after: continues the list; None means there are no more.
        searched: the number of messages that a filter was applied to; 0 without a filter.
        is_complete: whether the search reached the end of the list.
    """

    rows: tuple[MessageRow, ...]
    after: int | str | None
    searched: int = 0
    is_complete: bool = True


async def message_rows(
    broker: UserBroker, queue: str, state: str, *, where: str = "", after: int | None = None, limit: int = PAGE
) -> MessageRows:
    """Return a page of the messages in one state that match a filter.

    A filter is applied to the metadata here, message by message, so a long search ends early and is marked incomplete.

    Raises:
        SelectorError: the filter is not valid.
        NotFound: there is no such queue.
    """
    if state == "running":
        return await _running(broker, queue)
    if not where:
        page = await broker.client.list_by_state(queue, state, limit=limit, after=after)  # type: ignore[arg-type]
        infos = await _about(broker, queue, page.messages)
        return MessageRows(tuple(_row(message, infos.get(message.id)) for message in page.messages), page.after)
    return await _search(broker, queue, state, where, after, limit)


async def _search(broker: UserBroker, queue: str, state: str, where: str, after: int | None, limit: int) -> MessageRows:
    selector = compile_selector(where)
    began, searched = monotonic(), 0
    rows: list[MessageRow] = []
    while True:
        page = await broker.client.list_by_state(queue, state, limit=500, after=after)  # type: ignore[arg-type]
        infos = await _about(broker, queue, page.messages)
        for message in page.messages:
            searched += 1
            info = infos.get(message.id)
            if info is not None and selector.matches(info.headers):
                rows.append(_row(message, info))
        after = page.after
        is_over = len(rows) >= limit or searched >= MOST_SEARCHED or monotonic() - began > SEARCH_SECONDS
        if after is None or is_over:
            return MessageRows(tuple(rows), after, searched, after is None)


async def _running(broker: UserBroker, queue: str) -> MessageRows:
    page = await broker.client.list_messages(queues=[queue], statuses=["running"], limit=PAGE)
    return MessageRows(tuple(_running_row(queue, info) for info in page.items), None, is_complete=page.next is None)


async def _about(broker: UserBroker, queue: str, messages: Iterable[MessageState]) -> dict[int, MessageInfo]:
    """Return the history of these messages of a queue; empty if the broker keeps none.

    The queue is named because a user may be permitted to read one queue but not all messages.
    """
    ids = [item.id for item in messages]
    if not ids:
        return {}
    try:
        page = await broker.client.list_messages(ids=ids, queues=[queue], limit=len(ids))
    except PreconditionFailed:
        return {}
    return {item.id: item for item in page.items}


def _row(one: MessageState, about: MessageInfo | None) -> MessageRow:
    headers = about.headers if about is not None else {}
    statuses = [status for status in about.queues if status.queue == one.queue] if about is not None else []
    claimed = moment(statuses[0].at_ms) if statuses and statuses[0].status in ("in_flight", "running") else None
    return MessageRow(
        one.id,
        headers.get("task", ""),
        headers.get("id", "") if "task" in headers else "",
        one.priority,
        one.attempts,
        moment(about.received_at_ms) if about is not None else None,
        one.visible_at,
        one.holder,
        one.running_since or claimed,
        one.leased_until,
        one.settled_at,
    )


def _running_row(queue: str, about: MessageInfo) -> MessageRow:
    current = next(status for status in about.queues if status.queue == queue)
    state = MessageState(about.id, queue, "running", 0, current.attempts, holder=current.consumer)
    return _row(state, about)
