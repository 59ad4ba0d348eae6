"""Commands ``worker``: the broker's clients, their messages, and control over them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from ...control_queues import is_control_queue
from ...json_values import plain
from ...readable_text import age, counted
from ..exit_codes import CommandError, CommandGroup
from ..hints import next_command
from ..option_types import limit_option, state_name
from ..output import Reply, Table
from ..target import changes, complete_queues, completion, reads

if TYPE_CHECKING:
    from ...queue_client import QueueClient
    from ...queue_client.administration import Worker

_MAX_MESSAGES = 1000
#: number of digits of an id in a table: the last digits, because ids often begin with the same digits
_SHORT_ID = 8


worker_group = CommandGroup("worker", help="Manage workers: list, suspend, resume, release and more.")


@completion
def _complete_workers(client: QueueClient) -> list[str]:
    return [name for worker in client.workers() for name in (worker.name, worker.id[-_SHORT_ID:])]


worker_argument = click.argument("worker", shell_complete=_complete_workers)


def _time_since(at: datetime | None) -> str:
    return "" if at is None else age((datetime.now(UTC) - at).total_seconds())


_WORKERS = Table(
    {
        "worker": lambda worker: worker.id[-_SHORT_ID:],
        "name": "",
        "state": lambda worker: "suspended" if worker.suspended else "connected" if worker.connected else "gone",
        "for": lambda worker: _time_since(worker.since if worker.connected else None),
        "holds#": "held",
        "runs#": "running",
        "longest#": lambda worker: _time_since(worker.oldest_since),
        "consumes": lambda worker: ", ".join(name for name in worker.consumers if not is_control_queue(name)),
    },
    none="no workers",
    spare=("for", "longest"),
)


@worker_group.command("list", epilog="Example: opendata-queue worker list")
@reads
def list_workers(client: QueueClient) -> Reply:
    """List workers and other clients.

    The list has clients that are connected or still hold messages. A Celery worker is one row, however many connections
    its processes have. Clients without consumers and messages, such as producers and this command, are one row for each
    name. With --json, each client is listed.
    """
    workers = client.workers()
    return Reply(workers, _WORKERS.of(_rows(workers)))


def _rows(workers: list[Worker]) -> Iterator[Worker]:
    """Yield the clients that consume, hold or run messages; of the clients of any other name, only the first."""
    by_name: dict[tuple[str, str], list[Worker]] = {}
    for worker in sorted(workers, key=lambda worker: (worker.name, worker.user, worker.id)):
        by_name.setdefault((worker.name, worker.user), []).append(worker)
    for same in by_name.values():
        yield from [worker for worker in same if worker.consumers or worker.held or worker.running] or same[:1]


_MESSAGES = Table(
    {
        "queue": "",
        "message#": lambda state: str(state.id),
        "state": lambda state: state_name(state.state),
        "attempts#": "",
        "running since": "",
        "leased until": "",
    },
    none="",
    spare=("attempts", "leased until"),
)


@worker_group.command(epilog="Example: opendata-queue worker messages mail-worker-1")
@worker_argument
@limit_option("how many at most", 100, low=1, high=_MAX_MESSAGES)
@reads
def messages(client: QueueClient, worker: str, limit: int) -> Reply:
    """List the messages that a worker holds or runs.

    A task that is acknowledged at its end counts as running after a second or two.

    WORKER is an id, the end of an id, or a name; a name selects all clients that have it.
    """
    states = [state for entry in _named(client, worker) for state in client.worker_messages(entry.id, limit=limit)]
    document = [
        {name: value for name, value in plain(state).items() if name not in ("token", "settled_at")}
        for state in states[:limit]
    ]
    return Reply(document, _MESSAGES.of(states[:limit])._replace(none=f"worker {worker!r} holds no messages"))


def _named(client: QueueClient, text: str) -> list[Worker]:
    """Return the worker with this id or end of an id, or all workers with this name.

    Raises CommandError if there is none, or if several ids end like this.
    """
    workers = client.workers()
    named = [candidate for candidate in workers if candidate.name == text]
    if named:
        return named
    matches = [candidate for candidate in workers if candidate.id.endswith(text.lower())] if text else []
    if not matches:
        raise CommandError(f"no worker {text!r}: '{next_command('worker list')}' shows ids and names")
    if len(matches) > 1:
        raise CommandError(f"{len(matches)} workers have an id that ends with {text!r}: give more digits")
    return matches


def _control_command(verb: str, method: str, unit: str, description: str, done: str) -> None:
    """Add a verb that controls workers.

    Args:
        method: the method of the client.
        unit: the unit of the number that the method returns.
        done: a template of the output, with ``clients`` and ``count``, the two numbers with their units.
    """

    @worker_group.command(
        verb,
        help=f"{description}\n\nWORKER is an id, the end of an id, or a name; a name means all clients that have it.",
        epilog=f"Example: opendata-queue worker {verb} mail-worker-1",
    )
    @worker_argument
    @changes
    def control(client: QueueClient, worker: str) -> Reply:
        # the messages of a disconnected worker can be released, but it can't be controlled
        targets = [candidate for candidate in _named(client, worker) if candidate.connected or verb == "release"]
        if not targets:
            raise CommandError(f"worker {worker!r} is not connected")
        counts = {candidate.id: getattr(client, method)(candidate.id) for candidate in targets}
        total = sum(counts.values())
        text = done.format(clients=counted(len(targets), "client"), count=counted(total, unit))
        return Reply({"workers": list(counts), f"{unit}s": total}, text)


_control_command(
    "suspend",
    "suspend_worker",
    "consumer",
    "Deliver nothing more to a worker until it is resumed.\n\nIt keeps what it holds. A suspension ends "
    "when the worker disconnects.",
    "{clients} with {count} suspended",
)
_control_command(
    "resume",
    "resume_worker",
    "consumer",
    "Deliver messages to a suspended worker again.",
    "{clients} with {count} resumed",
)
_control_command(
    "release",
    "release_worker_messages",
    "message",
    "Return all messages that a worker holds to their queues.\n\nIt costs no attempt. The worker may still be "
    "processing them, but its acknowledgements are then refused.",
    "{count} released",
)
_control_command(
    "shutdown",
    "shutdown_worker",
    "consumer",
    "Cancel all consumers of a worker.\n\nA queue client's iterators end. A Celery worker consumes again: stop it with "
    "'celery control shutdown'.",
    "{count} cancelled",
)


@worker_group.command(epilog="Example: opendata-queue worker reclaim orders")
@click.argument("queue", required=False, default="", shell_complete=complete_queues)
@changes
def reclaim(client: QueueClient, queue: str) -> Reply:
    """Return the messages that lost clients hold to their queues.

    Without QUEUE, in all queues. It costs an attempt. After a restart of the broker, a client counts as lost until its
    next call.
    """
    count = client.reclaim_messages(queue)
    return Reply({"queue": queue or None, "messages": count}, f"{counted(count, 'message')} reclaimed")
