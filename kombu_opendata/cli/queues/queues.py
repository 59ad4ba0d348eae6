"""Commands ``queue list|show|create|delete|purge|metrics|recent``; the neighbouring modules have the other verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ...configuration.kinds import WholeNumberKind
from ...errors import NotFound
from ...json_values import moment, plain
from ...protocol.messages.flow_messages import BACKLOG, ORDERS
from ...readable_text import age, counted
from ..exit_codes import CommandGroup, confirm
from ..option_types import POINT, arguments_of, every_queue_option, limit_option, listed, parsed, validated
from ..output import Reply, Table, hidden_queues, local
from ..progress import watched
from ..target import Target, asks_always, at_target, changes, queue_argument, queues_argument, reads
from .alter import alter, argument_options, pause, resume, whole_seconds
from .exchanges import bindings_of, durability
from .moves import copy, move
from .top import top

if TYPE_CHECKING:
    from ...protocol.messages import PartitionInfo, PartitionPage
    from ...queue_client import QueueClient
    from ...queue_client.metrics import QueueMetrics
    from ...queue_client.queues import QueueInfo


queue_group = CommandGroup("queue", help="Manage queues: list, show, create, alter, pause and more.")


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


_QUEUES = Table(
    {"queue": "name", "kind": durability, "consumers#": "", "paused": _paused, "arguments": _arguments},
    none="no queues",
    rare=("paused",),
)


@queue_group.command("list", epilog="Example: opendata-queue queue list")
@every_queue_option
@reads
def list_queues(client: QueueClient, every: bool) -> Reply:
    """List the queues and their arguments. With --json, all of them."""
    infos = client.list_queues()
    rows = listed({info.name: info for info in infos}, every).values()
    return Reply(infos, _QUEUES.of(rows), notes=hidden_queues(len(infos) - len(rows)))


@queue_group.command(epilog="Example: opendata-queue queue show orders")
@queue_argument
@reads
def show(client: QueueClient, queue: str) -> Reply:
    """Show a queue's arguments, metrics and bindings."""
    info, bindings, metrics = client.get_queue(queue), client.list_bindings(queue), client.metrics(queue)
    facts = {"queue": info.name, "kind": durability(info), "created": local(info.created_at)}
    if info.paused:
        facts["paused"] = f"{_paused(info)}, since {local(info.paused_at)}"
    arguments = info.arguments | {name: _argument(info, name) for name in info.overrides}
    return Reply(
        {**plain(info), "bindings": bindings, "metrics": plain(metrics)},
        {**facts, **arguments, **_facts(metrics)},
        bindings_of(bindings, "queue"),
    )


@queue_group.command(epilog='Example: opendata-queue queue create big --filter "amount > 100" --done-retention 30d')
@click.argument("queue")
@argument_options
@click.option("--start", type=POINT, help="fill it with messages from first, now, a time, an age, or an id on")
@click.option("--single-active-consumer", is_flag=True, help="deliver to one consumer at a time")
@click.option("--transient", is_flag=True, help="keep it in memory only; it ends with the broker")
@click.option(
    "--argument",
    "arguments",
    multiple=True,
    metavar="NAME=TEXT",
    callback=parsed(arguments_of),
    help="another x- argument, or NAME:=JSON",
)
@click.option("--force", is_flag=True, help="accept arguments that this broker does not know")
@at_target
def create(queue: str, transient: bool, arguments: dict[str, Any], force: bool, target: Target, **values: Any) -> Reply:
    """Create a queue.

    Nothing happens if the queue exists with the same options. If the folder has no store, the command creates one and
    starts its broker. docs/queue-arguments.md explains the options.
    """
    from ...queue_client.queue_options import QueueOptions

    whole_seconds(values)
    options = QueueOptions(durable=not transient, arguments=arguments, **values)
    with target.client(creates=True) as client:
        client.create(queue, options, force=force)
        return Reply(client.get_queue(queue), f"queue {queue!r} is ready")


@queue_group.command(epilog="Example: opendata-queue queue delete big --if-unused")
@queue_argument
@click.option("--if-unused", is_flag=True, help="only if it has no consumers")
@click.option("--if-empty", is_flag=True, help="only if it has no ready or delayed messages")
@asks_always
@changes
def delete(client: QueueClient, queue: str, if_unused: bool, if_empty: bool, yes: bool) -> Reply:
    """Delete a queue with all its messages.

    Its done and failed messages are deleted as well, and its consumers are cancelled. Finished attempts stay in the
    history.
    """
    metrics = client.metrics(queue)
    confirm(
        f"Delete queue {queue!r} with {counted(metrics.length, 'message')}, {metrics.done:,} done and "
        f"{metrics.failed + metrics.archived_failed:,} failed ones, and {counted(metrics.consumers, 'consumer')}?",
        yes,
    )
    count = client.delete_queue(queue, if_unused=if_unused, if_empty=if_empty)
    document = {"queue": queue, "deleted": True, "messages": count}
    return Reply(document, f"queue {queue!r} deleted, with {counted(count, 'message')}")


@queue_group.command(epilog="Example: opendata-queue queue purge orders")
@queue_argument
@asks_always
@changes
def purge(client: QueueClient, queue: str, yes: bool) -> Reply:
    """Delete all ready and delayed messages of a queue. Messages in flight stay."""
    metrics = client.metrics(queue)
    confirm(f"Purge queue {queue!r} of {counted(metrics.ready + metrics.delayed, 'message')}?", yes)
    count = watched(f"purging {queue}", lambda: client.purge(queue), lambda: (0, None))
    return Reply({"queue": queue, "purged": count}, f"{counted(count, 'message')} purged from queue {queue!r}")


METRICS = Table(
    {
        "queue": "", "ready#": "", "delayed#": "", "in flight#": "", "done#": "", "failed#": "", "consumers#": "",
        "sent/s#": "sent_per_second", "acked/s#": "acked_per_second",
        "oldest#": lambda metrics: age(metrics.oldest_age_seconds),
    },
    none="no queues",
    spare=("acked/s", "sent/s", "consumers", "done", "delayed", "oldest"),
)  # fmt: skip


@queue_group.command(epilog="Example: opendata-queue queue metrics orders --json")
@queues_argument
@every_queue_option
@reads
def metrics(client: QueueClient, queues: tuple[str, ...], every: bool) -> Reply:
    """Show lengths, ages and rates of queues.

    Without QUEUE, of all queues. With --json, including Celery's queues for events and remote control.
    """
    entries = [client.metrics(name) for name in queues] if queues else list(client.metrics_all().values())
    if len(queues) == 1:
        return Reply(entries, {"queue": entries[0].queue, **_facts(entries[0]), **entries[0].counts})
    rows = listed({entry.queue: entry for entry in entries}, every or bool(queues)).values()
    return Reply(entries, METRICS.of(rows), notes=hidden_queues(len(entries) - len(rows)))


def _facts(metrics: QueueMetrics) -> dict[str, Any]:
    return {
        "ready": metrics.ready, "delayed": metrics.delayed, "in flight": metrics.in_flight, "done": metrics.done,
        "failed": metrics.failed, "archived": metrics.archived_failed, "consumers": metrics.consumers,
        "oldest": age(metrics.oldest_age_seconds),
        "newest": age(metrics.newest_age_seconds),
        "sent/s": f"{metrics.sent_per_second:.1f}",
        "delivered/s": f"{metrics.delivered_per_second:.1f}",
        "acked/s": f"{metrics.acked_per_second:.1f}",
        "counted since": metrics.counted_since,
    }  # fmt: skip


#: fields of :class:`~kombu_opendata.protocol.messages.MetricSeries`, by their headings
_SERIES = {
    "sent/s#": "published_per_second", "delivered/s#": "delivered_per_second", "acked/s#": "acked_per_second",
    "failed/s#": "failed_per_second", "ready#": "ready", "in flight#": "in_flight", "delayed#": "delayed",
}  # fmt: skip
_POINTS = Table({"time": "", **_SERIES}, none="no metrics yet", spare=("delivered/s", "delayed", "in flight"))


@queue_group.command(epilog="Example: opendata-queue queue recent orders")
@queues_argument
@reads
def recent(client: QueueClient, queues: tuple[str, ...]) -> Reply:
    """Show rates and lengths of the last ten minutes.

    Without QUEUE, of all queues together. The broker keeps them in memory, a point every five seconds, until it ends.
    """
    metrics = client.recent_metrics(queues)
    if missing := [name for name in queues if name not in metrics.queues]:
        raise NotFound(f"no queue {missing[0]!r}", queue=missing[0])
    tables = []
    for name, series in (metrics.queues if queues else {"all queues": metrics.total}).items():
        points = [
            {"time": local(at), **{field: getattr(series, field)[number] for field in _SERIES.values()}}
            for number, at in enumerate(metrics.times if series is not None else ())
        ]
        tables.append(_POINTS.of(points)._replace(title=name))
    return Reply(metrics, *tables)


def limit_of(limited: PartitionInfo | PartitionPage) -> str:
    """Return why a queue or a partition delivers nothing now, and until when."""
    until = f" until {local(moment(limited.opens_at_ms))}" if limited.opens_at_ms else ""
    return limited.limited_by + until


_PARTITIONS = Table(
    {
        "partition": lambda row: row.key or "(none)", "backlog#": "", "in flight#": "in_flight", "running#": "",
        "oldest": lambda row: age(row.oldest_age_seconds), "share": lambda row: f"{row.share:.1%}",
        "limited by": limit_of,
    },
    none="no partitions",
    spare=("share", "running"),
    rare=("limited by",),
)  # fmt: skip


@queue_group.command(epilog="Example: opendata-queue queue partitions orders --search acme")
@queue_argument
@click.option("--order", type=click.Choice(ORDERS), default=BACKLOG, help="largest, oldest, or by key")
@click.option("--search", default="", metavar="TEXT", help="only keys that contain this text")
@click.option("--offset", type=validated(WholeNumberKind(0)), default=0, help="skip this many partitions")
@limit_option("show at most this many partitions, up to 1,000", 50, low=1, high=1000)
@reads
def partitions(client: QueueClient, queue: str, order: Any, search: str, offset: int, limit: int) -> Reply:
    """Show the partitions of a queue, with their limits."""
    page = client.list_partitions(queue, order=order, search=search, offset=offset, limit=limit)
    notes = [f"the queue is limited by {limit_of(page)}"] if page.limited_by else []
    if (hidden := page.matching - offset - len(page.partitions)) > 0:
        notes.append(f"{hidden:,} more: use --offset")
    return Reply(page, _PARTITIONS.of(page.partitions), notes=notes)


@queue_group.command(epilog="Example: opendata-queue queue delay orders 60 --key acme")
@queue_argument
@click.argument("seconds", type=float)
@click.option("--key", help="the partition; default: the whole queue")
@changes
def delay(client: QueueClient, queue: str, seconds: float, key: str | None) -> Reply:
    """Deliver nothing of a queue or a partition for SECONDS.

    0 removes the delay.
    """
    until = client.delay_key(queue, seconds, key=key)
    text = f"delayed until {local(until)}" if until else "not delayed any more"
    return Reply({"queue": queue, "key": key, "until": until}, f"queue {queue!r} is {text}")


for _command in (alter, pause, resume, move, copy, top):
    queue_group.add_command(_command)
