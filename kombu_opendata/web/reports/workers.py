"""Report of workers with their messages, and of the broker's other clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from ...control_queues import is_control_queue
from ...errors import RequestError
from ...protocol.messages.history_messages import MessageInfo
from ...queue_client.message_models import MessageState, moment
from ...queue_client.queue_models import Worker
from ..brokers import UserBroker
from .identified import Identified
from .paging import Paged, paged

#: messages of a worker that its view shows
MAX_MESSAGES = 100


@dataclass(frozen=True)
class WorkerFigures:
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

    workers: Paged[WorkerFigures]
    others: tuple[OtherClients, ...]
    search: str


@dataclass(frozen=True)
class HeldMessage(Identified):
    """A message that a worker holds or runs.

    Attributes:
        state: ``in_flight``, or ``running``: its task began.
        task: the name of its task; empty if unknown.
        since: the time when the worker received it, or its task began.
        received_at: the time when the broker received it; None if its metadata is no longer stored.
    """

    id: int
    queue: str
    state: str
    task: str
    attempts: int
    since: datetime | None
    leased_until: datetime | None
    received_at: datetime | None


@dataclass(frozen=True)
class WorkerDetails:
    """A worker and its messages, the oldest first; ``more`` is the number of messages that are not included."""

    figures: WorkerFigures
    messages: tuple[HeldMessage, ...]
    more: int


async def workers(broker: UserBroker, *, search: str = "", page: int = 1) -> WorkerReport:
    """Return a page of the workers, and all other clients."""
    clients = await broker.recent("workers", 1.0, broker.client.workers)
    matching = [one for one in clients if search.lower() in one.name.lower()]
    consuming = sorted((one for one in matching if _works(one)), key=lambda one: (one.name, one.id))
    rows_page = paged(consuming, page)
    names = await _tasks(broker, [one.oldest_id for one in rows_page.rows if one.oldest_id is not None])
    rows = tuple(_figures(one, names) for one in rows_page.rows)
    other_clients = _others(one for one in matching if not _works(one))
    return WorkerReport(Paged(rows, rows_page.matching, rows_page.page, rows_page.pages), other_clients, search)


async def worker(broker: UserBroker, id: str) -> WorkerDetails:
    """Return one worker.

    Raises:
        NotFound: there is no such worker.
        RequestError: the id is not that of a worker.
    """
    client = await broker.client.worker(id)
    messages = await broker.client.worker_messages(id, limit=MAX_MESSAGES)
    infos = await _about(broker, [one.id for one in messages])
    names = {id: info.headers.get("task", "") for id, info in infos.items()}
    if client.oldest_id is not None and client.oldest_id not in names:
        names |= await _tasks(broker, [client.oldest_id])
    rows = sorted((_message(one, infos) for one in messages), key=lambda one: (one.since is None, one.since, one.id))
    return WorkerDetails(_figures(client, names), tuple(rows), max(client.held + client.running - len(rows), 0))


def _works(client: Worker) -> bool:
    return bool(client.consumers or client.held or client.running)


def _figures(found: Worker, tasks: dict[int, str]) -> WorkerFigures:
    oldest = "" if found.oldest_id is None else tasks.get(found.oldest_id, "")
    return WorkerFigures(found, tuple(queue for queue in found.consumers if not is_control_queue(queue)), oldest)


def _others(clients: Iterable[Worker]) -> tuple[OtherClients, ...]:
    by_name: dict[tuple[str, str], list[Worker]] = {}
    for client in clients:
        by_name.setdefault((client.name, client.user), []).append(client)
    return tuple(
        OtherClients(
            name,
            user,
            len(clients_of_name),
            sum(client.connections for client in clients_of_name),
            min((client.since for client in clients_of_name if client.since is not None), default=None),
        )
        for (name, user), clients_of_name in sorted(by_name.items())
    )


async def _tasks(broker: UserBroker, ids: list[int]) -> dict[int, str]:
    """Return the names of these messages' tasks, as far as they are known."""
    infos = await _about(broker, ids)
    return {id: info.headers.get("task", "") for id, info in infos.items()}


async def _about(broker: UserBroker, ids: list[int]) -> dict[int, MessageInfo]:
    if not ids:
        return {}
    key = ("messages", tuple(sorted(ids)))
    try:
        page = await broker.recent(key, 5.0, lambda: broker.client.list_messages(ids=ids, limit=len(ids)))
    except RequestError:  # the history is disabled, or this user has no permission
        return {}
    return {info.id: info for info in page.items}


def _message(state: MessageState, about: dict[int, MessageInfo]) -> HeldMessage:
    info = about.get(state.id)
    return HeldMessage(
        state.id,
        state.queue,
        state.state,
        info.headers.get("task", "") if info is not None else "",
        state.attempts,
        state.running_since or moment(state.token),
        state.leased_until,
        moment(info.received_at_ms) if info is not None else None,
    )
