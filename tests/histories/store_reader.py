"""Reads everything that a store has after a run: first a broker's lists, then the files without a broker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kombu_opendata import QueueClient
from kombu_opendata.errors import ConnectionLost, RetryLater
from kombu_opendata.offline import Severity

from ..support.processes import wait_until
from ..support.verified import verify
from . import events as e
from .programs import persist
from .queue_programs import connected, read_definition
from .task_programs import result_text

#: the states of ``iter_by_state``, and what they are here
_LISTS: dict[Any, e.State] = {
    "ready": "available",
    "delayed": "available",
    "in_flight": "in_flight",
    "done": "done",
    "failed": "failed",
}
_GONE = ("expired", "dropped", "moved", "removed")


def read_store(
    url: str, queues: Iterable[str], results: Iterable[str] = (), definitions: Iterable[str] = ()
) -> e.Store:
    """Return what a broker says of these queues, definitions and results, once it has no more work of its own."""
    with connected(url, "reader") as client:

        def read() -> e.Store:
            wait_until(lambda: _is_idle(client), 240, "no dead letter waits, and no job is routed")
            before, store = None, store_of(client, queues, results, definitions)
            while before is None or before.entries != store.entries:  # a message may leave one list before the next
                before, store = store, store_of(client, queues, results, definitions)
            return store

        # a new connection has less patience than a connection that was lost
        return persist(read, (ConnectionLost, RetryLater))


def store_of(
    client: QueueClient, queues: Iterable[str], results: Iterable[str] = (), definitions: Iterable[str] = ()
) -> e.Store:
    """Return what an idle broker says, as :func:`read_store`."""
    queues = {queue.name for queue in client.list_queues()} & set(queues)
    entries = list(_entries(client, sorted(queues)))
    runs = [
        e.Run(
            queue=row.queue, id=row.message_id, number=row.number, outcome=row.outcome, state=row.state,
            ended_at_ms=row.ended_at_ms,
        )
        for row in client.iter_attempts(limit=1000)
    ]  # fmt: skip
    texts = {task: result_text(client.task_result(task)) for task in results}
    return e.Store(
        entries=tuple(entries),
        runs=tuple(runs),
        counts={name: metrics.counts for name, metrics in client.metrics_all().items() if name in queues},
        results={task: text for task, text in texts.items() if text is not None},
        definitions={name: read_definition(client, name) for name in definitions},
    )


def _is_idle(client: QueueClient) -> bool:
    if client.status()["instances"]["default"]["dead_letters"]["waiting"]:
        return False
    return all(job.state != "routing" for job in client.iter_jobs())


def _entries(client: QueueClient, queues: Iterable[str]) -> Iterator[e.Entry]:
    """Each list of each queue, and what the history alone knows."""
    messages = {info.id: info for info in client.iter_messages(limit=1000)}
    keys = {id: _key(info.headers, id) for id, info in messages.items()}
    for queue in queues:
        listed = set()
        for name, state in _LISTS.items():
            for found in client.iter_by_state(queue, name):
                listed.add(found.id)
                key = keys.get(found.id, f"message {found.id}")
                yield e.Entry(queue=queue, id=found.id, key=key, state=state, attempts=found.attempts)
        for id, info in messages.items():
            if info.status(queue) in _GONE and id not in listed:
                yield e.Entry(queue=queue, id=id, key=keys[id], state="gone")


def _key(headers: dict[str, str], id: int) -> str:
    """The key of a message: a header, or the id of a task."""
    return headers.get("key") or headers.get("id") or f"message {id}"


def findings(store: Path | str, *, notes: bool = False) -> tuple[str, ...]:
    """Return what ``store verify`` finds wrong, or with its notes."""
    report = verify(store)
    wrong = [found for found in report.findings if notes or found.severity is not Severity.NOTE]
    return tuple(f"{found.code}: {found.text} [{found.key[:80]}]" for found in wrong) + tuple(report.incomplete)
