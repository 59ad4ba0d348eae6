"""Messages as rows of tables, and their ids, which in queues in memory exceed the range of JavaScript's numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from ...errors import RequestError
from ...json_values import moment
from ...protocol.messages import MessageInfo
from ...queue_client.message_models import MessageState
from ..rendering import STATE_NAMES
from ..user_clients import UserBroker
from .wire_structs import copied

#: digits of the largest id
_MOST_DIGITS = 20
_HELD = ("in_flight", "running")


def id_of(text: str) -> int | None:
    """Return a text as a message id; None if it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


@dataclass(frozen=True)
class Identified:
    """A report with an ``id``; ``id_text`` is the same with all its digits for every JSON parser."""

    id_text: str = field(init=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "id_text", str(vars(self)["id"]))


@dataclass(frozen=True)
class MessageRow(Identified):
    """A message of a queue.

    Attributes:
        task, task_id: name and id of a Celery task; empty for other messages, and if the history is disabled.
        since: the time of the delivery, or of the start of its task.
        holder: the consumer that holds it or runs its task.
        received_at: the time when the broker received it; None if its metadata is no longer stored.
    """

    id: int
    queue: str
    state: str
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


def row_of(message: MessageState, info: MessageInfo | None) -> MessageRow:
    """Return the row of a message, with its data from the history."""
    headers = info.headers if info is not None else {}
    statuses = [status for status in info.queues if status.queue == message.queue] if info is not None else []
    since = message.running_since
    if since is None and statuses and statuses[0].status in _HELD:
        since = moment(statuses[0].at_ms)
    if since is None and message.state in _HELD:
        since = moment(message.token)
    return copied(
        MessageRow,
        message,
        state=STATE_NAMES.get(message.state, message.state),
        task=headers.get("task", ""),
        task_id=headers.get("id", "") if "task" in headers else "",
        received_at=moment(info.received_at_ms) if info is not None else None,
        since=since,
    )


async def infos_of(broker: UserBroker, ids: Iterable[int], queue: str = "") -> dict[int, MessageInfo]:
    """Return the history of messages; empty if the broker keeps none, or this user may not read it.

    ``queue`` is the queue of all these messages, if there is one: the user may be permitted to read only that queue.
    """
    if not (known := list(ids)):
        return {}
    try:
        page = await broker.client.list_messages(ids=known, queues=[queue] if queue else None, limit=len(known))
    except RequestError:
        return {}
    return {info.id: info for info in page.items}
