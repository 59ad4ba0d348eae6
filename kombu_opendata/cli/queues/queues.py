"""Commands ``queue list|show|create|drop|purge|metrics``; the neighbouring modules have the other verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ...json_values import plain
from ...readable_text import age, arguments_text, counted
from ..exit_codes import CommandGroup, confirm
from ..option_types import POINT, every_queue_option, headers_of, listed
from ..target import Target, call_options, look_options, queue_argument, queues_argument, yes_option
from ..terminal.output import local, note_hidden, print_facts, print_json, say
from ..terminal.tables import Column, print_table
from .argument_options import argument_options, whole_seconds
from .figures import figures
from .moves import copy, move
from .steering import alter, pause, resume
from .top import top

if TYPE_CHECKING:
    from ...queue_client.queue_models import QueueInfo, QueueMetrics


@click.group("queue", cls=CommandGroup)
def queue_group() -> None:
    """Manage queues: list, show, create, alter, pause and more."""


@queue_group.command("list", epilog="Example: opendata-queue queue list")
@every_queue_option
@look_options
def list_queues(every: bool, target: Target, as_json: bool) -> None:
    """List the queues and their arguments. With --json, all of them."""
    with target.client(looks=True) as client:
        infos = client.list_queues()
    if as_json:
        print_json(infos)
        return
    columns: list[Column] = [
        ("queue", False), ("kind", False), ("consumers", True), ("paused", False), ("arguments", False),
    ]  # fmt: skip
    listed_infos = listed({info.name: info for info in infos}, every).values()
    rows = [(info.name, _kind(info), info.consumers, _paused(info), _arguments(info)) for info in listed_infos]
    print_table(columns, rows, none="no queues", spare=() if any(info.paused for info in infos) else ("paused",))
    note_hidden(len(infos) - len(listed_infos))


def _kind(info: QueueInfo) -> str:
    if info.exclusive:
        return "exclusive"
    return "auto-delete" if info.auto_delete else "durable" if info.durable else "transient"


def _paused(info: QueueInfo) -> str:
    return "deliveries, publishes" if info.publishes_paused else "deliveries" if info.paused else ""


def _arguments(info: QueueInfo) -> str:
    """Return the arguments in effect; for those that an operator has changed, also the declared values."""
    return ", ".join(f"{name.removeprefix('x-')}: {_argument(info, name)}" for name in info.arguments | info.overrides)


def _argument(info: QueueInfo, name: str) -> str:
    if name not in info.overrides:
        return str(info.arguments[name])
    value = info.overrides[name]
    declared = f"declared {info.arguments[name]}" if name in info.arguments else "not declared"
    return f"{'none' if value is None else value} ({declared})"


@queue_group.command(epilog="Example: opendata-queue queue show orders")
@queue_argument
@look_options
def show(queue: str, target: Target, as_json: bool) -> None:
    """Show a queue's arguments, figures and bindings."""
    with target.client(looks=True) as client:
        info, bindings, metrics = client.get_queue(queue), client.list_bindings(queue), client.metrics(queue)
    if as_json:
        print_json({**plain(info), "bindings": bindings, "metrics": metrics})
        return
    facts = {"queue": info.name, "kind": _kind(info), "created": local(info.created_at)}
    if info.paused:
        facts["paused"] = f"{_paused(info)}, since {local(info.paused_at)}"
    arguments = info.arguments | {name: _argument(info, name) for name in info.overrides}
    print_facts({**facts, **arguments, **_figures(metrics)})
    columns: list[Column] = [("exchange", False), ("routing key", False), ("arguments", False)]
    rows = [(binding.exchange, binding.routing_key, arguments_text(binding.arguments)) for binding in bindings]
    print_table(columns, rows, title="bindings", none="no bindings")


@queue_group.command(epilog='Example: opendata-queue queue create big --filter "amount > 100" --done-retention 30d')
@click.argument("queue")
@argument_options
@click.option(
    "--start",
    type=POINT,
    help="fill it with stored messages from here on: first, now, a time, how long ago, a message id",
)
@click.option("--single-active-consumer", is_flag=True, help="deliver to one consumer at a time")
@click.option("--transient", is_flag=True, help="keep it in memory only; it ends with the broker")
@click.option(
    "--argument", "arguments", multiple=True, metavar="NAME=TEXT", help="any other x- argument, or NAME:=JSON"
)
@click.option("--force", is_flag=True, help="accept arguments that this broker does not know")
@call_options
def create(
    queue: str, transient: bool, arguments: tuple[str, ...], force: bool, target: Target, as_json: bool, **given: Any
) -> None:
    """Create a queue.

    Nothing happens if the queue exists with the same options. If the folder has no store, the command creates one and
    starts its broker. docs/queue-arguments.md explains the options.
    """
    from ...queue_client.queue_options import QueueOptions

    whole_seconds(given)
    options = QueueOptions(durable=not transient, arguments=headers_of(arguments, "argument"), **given)
    with target.client(creates=True) as client:
        client.create(queue, options, force=force)
        info = client.get_queue(queue) if as_json else None
    if as_json:
        print_json(info)
    else:
        say(f"queue {queue!r} is ready")


@queue_group.command(epilog="Example: opendata-queue queue drop big --if-unused")
@queue_argument
@click.option("--if-unused", is_flag=True, help="only if it has no consumers")
@click.option("--if-empty", is_flag=True, help="only if no messages wait in it")
@yes_option
@call_options
def drop(queue: str, if_unused: bool, if_empty: bool, yes: bool, target: Target, as_json: bool) -> None:
    """Delete a queue with all its messages.

    Its archived and failed messages are deleted as well, and its consumers are cancelled. Finished attempts stay in
    the history.
    """
    with target.client() as client:
        metrics = client.metrics(queue)
        confirm(
            f"Drop queue {queue!r} with {counted(metrics.length, 'message')}, {metrics.done:,} archived and "
            f"{metrics.failed + metrics.archived_failed:,} failed ones, and {counted(metrics.consumers, 'consumer')}?",
            yes,
        )
        deleted = client.drop(queue, if_unused=if_unused, if_empty=if_empty)
    if as_json:
        print_json({"queue": queue, "dropped": True, "messages": deleted})
    else:
        say(f"queue {queue!r} deleted, with {counted(deleted, 'waiting message')}")


@queue_group.command(epilog="Example: opendata-queue queue purge orders")
@queue_argument
@yes_option
@call_options
def purge(queue: str, yes: bool, target: Target, as_json: bool) -> None:
    """Remove all waiting messages from a queue.

    Delayed messages are removed as well; messages in flight stay.
    """
    from ..terminal.progress import watched

    with target.client() as client:
        metrics = client.metrics(queue)
        count = metrics.visible + metrics.delayed
        confirm(f"Remove {counted(count, 'waiting message')} from queue {queue!r}?", yes)
        removed = watched(f"purging {queue}", lambda: client.purge(queue), lambda: (0, None))
    if as_json:
        print_json({"queue": queue, "purged": removed})
    else:
        say(f"{counted(removed, 'message')} removed from queue {queue!r}")


@queue_group.command(epilog="Example: opendata-queue queue metrics orders --json")
@queues_argument
@every_queue_option
@look_options
def metrics(queues: tuple[str, ...], every: bool, target: Target, as_json: bool) -> None:
    """Show lengths, ages and rates of queues.

    Without QUEUE, of all queues. With --json, including Celery's queues for events and remote control.
    """
    with target.client(looks=True) as client:
        queue_metrics = [client.metrics(name) for name in queues] if queues else list(client.metrics_all().values())
    if as_json:
        print_json(queue_metrics)
    elif len(queues) == 1:
        print_facts({"queue": queue_metrics[0].queue, **_figures(queue_metrics[0]), **queue_metrics[0].counts})
    else:
        listed_metrics = listed({entry.queue: entry for entry in queue_metrics}, every or bool(queues)).values()
        print_table(COLUMNS, map(row, listed_metrics), none="no queues", spare=SPARE)
        note_hidden(len(queue_metrics) - len(listed_metrics))


COLUMNS: list[Column] = [
    ("queue", False), ("visible", True), ("delayed", True), ("in flight", True), ("done", True), ("failed", True),
    ("consumers", True), ("sent/s", True), ("acked/s", True), ("oldest", True),
]  # fmt: skip


#: columns that are left out on a narrow terminal, the first one first
SPARE = ("acked/s", "sent/s", "consumers", "done", "delayed", "oldest")


def row(one: QueueMetrics) -> tuple[Any, ...]:
    """Return a queue's metrics in the order of :data:`COLUMNS`."""
    rates = one.sent_per_second, one.acked_per_second
    counts = one.visible, one.delayed, one.in_flight, one.done, one.failed, one.consumers
    return one.queue, *counts, *rates, age(one.oldest_age_seconds)


def _figures(one: QueueMetrics) -> dict[str, Any]:
    return {
        "visible": one.visible,
        "delayed": one.delayed,
        "in flight": one.in_flight,
        "done": one.done,
        "failed": one.failed,
        "archived failed": one.archived_failed,
        "consumers": one.consumers,
        "oldest": age(one.oldest_age_seconds),
        "newest": age(one.newest_age_seconds),
        "sent/s": f"{one.sent_per_second:.1f}",
        "delivered/s": f"{one.delivered_per_second:.1f}",
        "acked/s": f"{one.acked_per_second:.1f}",
        "counted since": one.counted_since,
    }


for _command in (alter, pause, resume, move, copy, figures, top):
    queue_group.add_command(_command)
