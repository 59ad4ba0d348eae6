"""Commands ``worker``: the broker's clients, their messages, and control over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ...control_queues import is_control_queue
from ...json_values import plain
from ...readable_text import age, counted
from ..exit_codes import CommandError, CommandGroup
from ..hints import next_command
from ..option_types import limit_option
from ..target import Target, call_options, complete_queues, completion, look_options
from ..terminal.output import print_json, say
from ..terminal.tables import Column, print_table

if TYPE_CHECKING:
    from ...queue_client import QueueClient
    from ...queue_client.message_models import MessageState
    from ...queue_client.queue_models import Worker

_MAX_MESSAGES = 1000
#: number of digits of an id in a table: the last ones, because the first ones are often equal
_SHORT_ID = 8


@click.group("worker", cls=CommandGroup)
def worker_group() -> None:
    """Manage workers: list, suspend, resume, release and more."""


@completion
def _complete_workers(client: QueueClient) -> list[str]:
    return [name for worker in client.workers() for name in (worker.name, worker.id[-_SHORT_ID:])]


worker_argument = click.argument("worker", shell_complete=_complete_workers)


# ---------------------------------------------------------------------- list, messages
@worker_group.command("list", epilog="Example: opendata-queue worker list")
@look_options
def list_workers(target: Target, as_json: bool) -> None:
    """List workers and other clients.

    The list has clients that are connected or still hold messages. A Celery worker is one row, however many connections
    its processes have. Clients without consumers and messages, such as producers and this command, are one row for each
    name. With --json, each client is listed.
    """
    with target.client(looks=True) as client:
        workers = client.workers()
    if as_json:
        print_json(workers)
        return
    columns: list[Column] = [
        ("worker", False), ("name", False), ("state", False), ("for", False), ("holds", True), ("runs", True),
        ("longest", True), ("consumes", False),
    ]  # fmt: skip
    rows = [
        (
            row.id[-_SHORT_ID:], row.name, _state(row), _time_since(row.since if row.connected else None),
            row.held, row.running, _time_since(row.oldest_since),
            ", ".join(queue for queue in row.consumers if not is_control_queue(queue)),
        )
        for row in _rows(workers)
    ]  # fmt: skip
    print_table(columns, rows, none="no workers", spare=("for", "longest"))


def _rows(found: list[Worker]) -> Iterator[Worker]:
    """Yield the clients with work, except others of the same name, and one client for each other name."""
    by_name: dict[tuple[str, str], list[Worker]] = {}
    for client in sorted(found, key=lambda client: (client.name, client.user, client.id)):
        by_name.setdefault((client.name, client.user), []).append(client)
    for clients in by_name.values():
        yield from [client for client in clients if client.consumers or client.held or client.running] or clients[:1]


def _state(one: Worker) -> str:
    if one.suspended:
        return "suspended"
    return "connected" if one.connected else "gone"


def _time_since(at: datetime | None) -> str:
    return "" if at is None else age((datetime.now(UTC) - at).total_seconds())


@worker_group.command(epilog="Example: opendata-queue worker messages mail-worker-1")
@worker_argument
@limit_option("how many at most", 100, low=1, high=_MAX_MESSAGES)
@look_options
def messages(worker: str, limit: int, target: Target, as_json: bool) -> None:
    """List the messages that a worker holds or runs.

    A task that is acknowledged at its end counts as running after a second or two.

    WORKER is an id, the end of an id, or a name; a name selects all clients that have it.
    """
    with target.client(looks=True) as client:
        states = [state for entry in _named(client, worker) for state in client.worker_messages(entry.id, limit=limit)]
    if as_json:
        print_json([_as_json(entry) for entry in states[:limit]])
        return
    columns: list[Column] = [
        ("queue", False), ("message", True), ("state", False), ("attempts", True), ("running since", False),
        ("leased until", False),
    ]  # fmt: skip
    rows = [
        (entry.queue, str(entry.id), entry.state, entry.attempts, entry.running_since, entry.leased_until)
        for entry in states[:limit]
    ]
    print_table(columns, rows, none=f"worker {worker!r} holds no messages", spare=("attempts", "leased until"))


def _as_json(one: MessageState) -> dict[str, Any]:
    return {name: value for name, value in plain(one).items() if name not in ("token", "settled_at")}


def _named(client: QueueClient, text: str) -> list[Worker]:
    """Return the worker with this id or end of an id, or all workers with this name.

    Raises:
        CommandError: there is none, or several ids end like this.
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


# ---------------------------------------------------------------------- control
def _control_command(verb: str, does: str, done: Callable[[int, int], str], call: str) -> None:
    """Add a verb that controls workers; ``done`` makes its output from the number of workers and the broker's count."""

    @worker_group.command(
        verb,
        help=f"{does}\n\nWORKER is an id, the end of an id, or a name; a name stands for all clients that have it.",
        epilog=f"Example: opendata-queue worker {verb} mail-worker-1",
    )
    @worker_argument
    @call_options
    def control(worker: str, target: Target, as_json: bool) -> None:
        with target.client() as client:
            # the messages of a disconnected worker can be released, but it can't be controlled
            targets = [candidate for candidate in _named(client, worker) if candidate.connected or verb == "release"]
            if not targets:
                raise CommandError(f"worker {worker!r} is not connected")
            counts = {candidate.id: getattr(client, call)(candidate.id) for candidate in targets}
        if as_json:
            print_json({"workers": list(counts), _COUNTED[verb]: sum(counts.values())})
        else:
            say(done(len(targets), sum(counts.values())))


#: the objects that the broker counts
_COUNTED = {"suspend": "consumers", "resume": "consumers", "shutdown": "consumers", "release": "messages"}

_control_command(
    "suspend",
    "Deliver nothing more to a worker until it is resumed.\n\nIt keeps what it holds. A suspension ends "
    "when the worker disconnects.",
    lambda workers, consumers: f"{counted(workers, 'client')} with {counted(consumers, 'consumer')} suspended",
    "suspend_worker",
)
_control_command(
    "resume",
    "Deliver messages to a suspended worker again.",
    lambda workers, consumers: f"{counted(workers, 'client')} with {counted(consumers, 'consumer')} resumed",
    "resume_worker",
)
_control_command(
    "release",
    "Return all messages that a worker holds to their queues.\n\nIt costs no attempt. The worker may still be "
    "processing them, but its acknowledgements are then refused.",
    lambda _workers, messages: f"{counted(messages, 'message')} released",
    "release_worker_messages",
)
_control_command(
    "shutdown",
    "Cancel all consumers of a worker.\n\nA queue client's iterators end. A Celery worker consumes again: stop it with "
    "'celery control shutdown'.",
    lambda _workers, consumers: f"{counted(consumers, 'consumer')} cancelled",
    "shutdown_worker",
)


@worker_group.command(epilog="Example: opendata-queue worker reclaim orders")
@click.argument("queue", required=False, default="", shell_complete=complete_queues)
@call_options
def reclaim(queue: str, target: Target, as_json: bool) -> None:
    """Return the messages that lost clients hold to their queues.

    Without QUEUE, in all queues. It costs an attempt. After a restart of the broker, a client counts as lost until its
    next call.
    """
    with target.client() as client:
        count = client.reclaim_messages(queue)
    if as_json:
        print_json({"queue": queue or None, "messages": count})
    else:
        say(f"{counted(count, 'message')} reclaimed")
