"""Report of one queue: arguments, metrics, messages, bindings and consumers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from msgspec import structs

from ...client.calls.history_queries import Page
from ...errors import AccessRefused
from ...masking import Masking
from ...protocol.messages.failure_messages import FailureInfo
from ...queue_client.queue_models import Binding, QueueInfo, QueueMetrics, Worker
from ..brokers import UserBroker
from .message_rows import MessageRows, message_rows
from .queue_metrics import with_failures

#: tabs by name: the state of their messages
TABS = {
    "ready": "available",
    "delayed": "delayed",
    "flight": "in_flight",
    "running": "running",
    "done": "done",
    "failed": "failed",
    "archived": "archived_failed",
}


@dataclass(frozen=True)
class QueueReport:
    """A queue.

    Attributes:
        bindings: the bindings that route messages to it.
        consumers: the names of its consumers; none for users who may not see the workers.
    """

    info: QueueInfo
    figures: QueueMetrics
    bindings: tuple[Binding, ...]
    consumers: tuple[str, ...]


async def queue_report(broker: UserBroker, name: str) -> QueueReport:
    """Return a queue with its metrics, bindings and consumers.

    Raises:
        NotFound: there is no such queue.
    """
    client = broker.client
    [figures] = await with_failures(broker, [await client.metrics(name)])
    info = await client.get_queue(name)
    bindings = await broker.recent("bindings", 2.0, client.list_bindings)
    workers: list[Worker] = []
    with suppress(AccessRefused):
        workers = await broker.recent("workers", 2.0, client.workers)
    consumers = tuple(item.name for item in workers if name in item.consumers)
    return QueueReport(info, figures, tuple(item for item in bindings if item.queue == name), consumers)


async def queue_messages(
    broker: UserBroker, name: str, tab: str, *, where: str = "", after: int | None = None
) -> MessageRows:
    """Return a page of a tab of messages; see :func:`message_rows`."""
    return await message_rows(broker, name, TABS.get(tab, "available"), where=where, after=after)


async def queue_failures(
    broker: UserBroker, masking: Masking, name: str, *, where: str = "", after: str | None = None
) -> Page[FailureInfo]:
    """Return a page of the unhandled failures of a queue, including acknowledged failures."""
    page = await broker.client.list_failures(queues=[name], where=where, limit=50, next=after)
    return replace(
        page, items=tuple(structs.replace(failure, error=masking.text(failure.error)) for failure in page.items)
    )
