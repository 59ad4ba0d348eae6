"""Views of workers with their messages, and of the broker's other clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from ...control_queues import is_control_queue
from ...queue_client.administration import Worker
from ..reports.message_rows import MessageRow, infos_of, row_of
from ..reports.paging import Paged, paged
from ..reports.wire_structs import WireStruct
from ..request_context import AVisit
from ..user_clients import UserBroker
from .view import Views

VIEWS = Views("workers")
#: messages of a worker that its view shows
MAX_MESSAGES = 100


@dataclass(frozen=True)
class WorkerMetrics:
    """A worker: a client that consumes, or that holds or runs messages.

    Attributes:
        worker: the broker's information about it.
        queues: the queues that it consumes, without those of Celery's remote control and events.
        oldest_task: the name of the task that it has held or run for longest; empty if unknown.
    """

    worker: Worker
    queues: tuple[str, ...]
    oldest_task: str


@dataclass(frozen=True)
class OtherClients:
    """Clients with one name and no consumers: producers, result backends, the web UI.

    Attributes:
        connections: the number of their current connections.
        since: the time when the first of them connected.
    """

    name: str
    user: str
    clients: int
    connections: int
    since: datetime | None


@dataclass(frozen=True)
class WorkerReport:
    """Workers by name, and all other clients by name."""

    workers: Paged[WorkerMetrics]
    others: tuple[OtherClients, ...]
    search: str


@dataclass(frozen=True)
class WorkerDetails:
    """A worker and its messages, the oldest first; ``more`` is the number of messages that are not included."""

    metrics: WorkerMetrics
    messages: tuple[MessageRow, ...]
    more: int


@VIEWS.view("/workers", "workers.html")
async def list_workers(visit: AVisit, search: str = "", page: int = 1) -> WorkerReport:
    """Return a page of the workers, and all other clients of the broker."""
    broker = visit.broker
    clients = await broker.recent("workers", 1.0, broker.client.workers)
    matching = [client for client in clients if search.lower() in client.name.lower()]
    consuming = sorted(filter(_works, matching), key=lambda client: (client.name, client.id))
    rows = paged(consuming, page)
    names = await _tasks(broker, (client.oldest_id for client in rows.rows if client.oldest_id is not None))
    others = _others(client for client in matching if not _works(client))
    metrics = tuple(_metrics_of(client, names) for client in rows.rows)
    return WorkerReport(Paged(metrics, rows.matching, rows.page, rows.pages), others, search)


@VIEWS.view("/worker", "worker.html")
async def get_worker(visit: AVisit, id: str) -> Annotated[WorkerDetails, WireStruct()]:
    """Return a worker, and at most 100 of the messages that it holds or runs."""
    broker = visit.broker
    client = await broker.client.worker(id)
    messages = await broker.client.worker_messages(id, limit=MAX_MESSAGES)
    infos = await broker.recent(("messages of", id), 5.0, lambda: infos_of(broker, (each.id for each in messages)))
    oldest = () if client.oldest_id is None else (client.oldest_id,)
    rows = sorted(
        (row_of(message, infos.get(message.id)) for message in messages),
        key=lambda row: (row.since is None, row.since, row.id),
    )
    left = max(client.held + client.running - len(rows), 0)
    return WorkerDetails(_metrics_of(client, await _tasks(broker, oldest)), tuple(rows), left)


def _works(client: Worker) -> bool:
    return bool(client.consumers or client.held or client.running)


def _metrics_of(client: Worker, tasks: dict[int, str]) -> WorkerMetrics:
    oldest = "" if client.oldest_id is None else tasks.get(client.oldest_id, "")
    return WorkerMetrics(client, tuple(queue for queue in client.consumers if not is_control_queue(queue)), oldest)


def _others(clients: Iterable[Worker]) -> tuple[OtherClients, ...]:
    by_name: dict[tuple[str, str], list[Worker]] = {}
    for client in clients:
        by_name.setdefault((client.name, client.user), []).append(client)
    return tuple(
        OtherClients(
            name=name,
            user=user,
            clients=len(same),
            connections=sum(client.connections for client in same),
            since=min((client.since for client in same if client.since is not None), default=None),
        )
        for (name, user), same in sorted(by_name.items())
    )


async def _tasks(broker: UserBroker, ids: Iterable[int]) -> dict[int, str]:
    """Return the names of these messages' tasks, as far as they are known."""
    key = tuple(sorted(ids))
    infos = await broker.recent(("messages", key), 5.0, lambda: infos_of(broker, key))
    return {id: info.headers.get("task", "") for id, info in infos.items()}
