"""``worker``: the broker's clients, what they hold, and a word to them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from .exit_codes import Failure, Group
from .target import complete_queues, completion, find, json_option, target_options
from .terminal.output import Column, age, counted, plain, print_json, print_table, say

if TYPE_CHECKING:
    from ..queue_client import QueueClient
    from ..queue_client.models import MessageState, Worker

_MAX_MESSAGES = 1000
#: digits of an id in a table: the last ones, as many ids begin alike
_SHORT_ID = 8


@click.group("worker", cls=Group)
def worker_group() -> None:
    """Workers: list, messages, suspend, resume, release and more."""


@completion
def _complete_workers(client: QueueClient) -> list[str]:
    return [name for one in client.workers() for name in (one.name, one.id[-_SHORT_ID:])]


worker_argument = click.argument("worker", shell_complete=_complete_workers)


# ---------------------------------------------------------------------- looking
@worker_group.command("list", epilog="Example: opendata-queue worker list")
@target_options
@json_option
def list_workers(url: str | None, tls_ca: str | None, as_json: bool) -> None:
    """List the clients that are connected or still hold messages.

    These are Celery workers, queue clients, and this command itself.
    """
    with find(url, tls_ca).client(looks=True) as client:
        found = client.workers()
    if as_json:
        print_json(found)
        return
    columns: list[Column] = [
        ("worker", False), ("name", False), ("state", False), ("for", False), ("holds", True), ("consumes", False),
    ]  # fmt: skip
    rows = [
        (one.id[-_SHORT_ID:], one.name, _state(one), _connected_for(one), one.held, ", ".join(one.consumers))
        for one in sorted(found, key=lambda one: (one.name, one.id))
    ]
    print_table(columns, rows, none="no workers", spare=("for",))


def _state(one: Worker) -> str:
    if one.suspended:
        return "suspended"
    return "connected" if one.connected else "gone"


def _connected_for(one: Worker) -> str:
    return "" if one.since is None or not one.connected else age((datetime.now(UTC) - one.since).total_seconds())


@worker_group.command(epilog="Example: opendata-queue worker messages mail-worker-1")
@worker_argument
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(1, _MAX_MESSAGES),
    metavar="N",
    default=100,
    show_default=True,
    help="how many at most",
)
@target_options
@json_option
def messages(worker: str, limit: int, url: str | None, tls_ca: str | None, as_json: bool) -> None:
    """List the messages that a worker holds.

    WORKER is an id, the end of one, or a name; a name stands for all clients that have it.
    """
    with find(url, tls_ca).client(looks=True) as client:
        held = [state for one in _named(client, worker) for state in client.worker_messages(one.id, limit=limit)]
    if as_json:
        print_json([_as_json(one) for one in held[:limit]])
        return
    columns: list[Column] = [("queue", False), ("message", True), ("attempts", True), ("until", False)]
    rows = [(one.queue, str(one.id), one.attempts, one.leased_until) for one in held[:limit]]
    print_table(columns, rows, none=f"worker {worker!r} holds no messages")


def _as_json(one: MessageState) -> dict[str, Any]:
    return {name: value for name, value in plain(one).items() if name not in ("token", "settled_at")}


def _named(client: QueueClient, text: str) -> list[Worker]:
    """The workers that are meant: one by its id or the end of its id, or all of a name.

    Raises:
        Failure: there is none, or the end is that of several.
    """
    workers = client.workers()
    named = [one for one in workers if one.name == text]
    if named:
        return named
    found = [one for one in workers if one.id.endswith(text.lower())] if text else []
    if not found:
        raise Failure(f"no worker {text!r}: 'opendata-queue worker list' shows ids and names")
    if len(found) > 1:
        raise Failure(f"{len(found)} workers have an id that ends with {text!r}: give more of it")
    return found


# ---------------------------------------------------------------------- control
def _control_command(verb: str, does: str, done: Callable[[int, int], str], call: str) -> None:
    """A verb that tells workers something; ``done`` says so, of how many workers and of what the broker counted."""

    @worker_group.command(
        verb,
        help=f"{does}\n\nWORKER is an id, the end of one, or a name; a name stands for all clients that have it.",
        epilog=f"Example: opendata-queue worker {verb} mail-worker-1",
    )
    @worker_argument
    @target_options
    @json_option
    def control(worker: str, url: str | None, tls_ca: str | None, as_json: bool) -> None:
        with find(url, tls_ca).client() as client:
            # what only holds something has no connection that could be told
            meant = [one for one in _named(client, worker) if one.connected or verb == "release"]
            if not meant:
                raise Failure(f"worker {worker!r} is not connected")
            counts = {one.id: getattr(client, call)(one.id) for one in meant}
        if as_json:
            print_json({"workers": list(counts), _COUNTED[verb]: sum(counts.values())})
        else:
            say(done(len(meant), sum(counts.values())))


#: what the broker counts
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
    "Put back into their queues all messages that a worker holds.\n\nIt costs no attempt. The worker may still be at "
    "work on them; what it acknowledges then is refused.",
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
@target_options
@json_option
def reclaim(queue: str, url: str | None, tls_ca: str | None, as_json: bool) -> None:
    """Put back into their queues what lost clients hold.

    In one queue, or in all. It costs an attempt. After a restart of the broker, a client that has made no call since
    counts as lost.
    """
    with find(url, tls_ca).client() as client:
        count = client.reclaim_messages(queue)
    if as_json:
        print_json({"queue": queue or None, "messages": count})
    else:
        say(f"{counted(count, 'message')} reclaimed")
