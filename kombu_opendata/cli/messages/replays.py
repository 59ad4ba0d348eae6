"""Command ``replay``: route stored messages to a queue again."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import click

from ...json_values import moment, with_times
from ...readable_text import counted
from ..exit_codes import REFUSED, Command, CommandError
from ..hints import next_command
from ..option_types import POINT, where_option
from ..output import Reply, Table, column, note, numbers
from ..progress import bar
from ..target import Target, complete_queues, reads_at_target

if TYPE_CHECKING:
    from ...queue_client import QueueClient

_LOOK_SECONDS = 0.2


@click.command(cls=Command, epilog='Example: opendata-queue replay orders --from 2h --where "amount > 100"')
@click.argument("queue", required=False, shell_complete=complete_queues)
@click.option(
    "--from", "start", type=POINT, help="begin here: first, a message id, a time (2026-11-21T09:30), or 2h ago"
)
@click.option("--until", type=POINT, default="now", show_default=True, help="end before this position")
@where_option
@click.option(
    "--wait/--no-wait", default=True, show_default=True, help="wait until it is done; it continues either way"
)
@click.option("--progress", is_flag=True, help="show the progress of all replays, or of this queue's")
@click.option("--cancel", is_flag=True, help="end this queue's replay where it is")
@reads_at_target
def replay(
    queue: str | None, start: Any, until: Any, where: str, wait: bool, progress: bool, cancel: bool, target: Target
) -> Reply:  # fmt: skip
    """Put stored messages into a queue again.

    The command selects messages that match the queue's filter or bindings and are not ready, delayed or in flight
    there. Tasks run again. The broker works in the background: Ctrl-C ends the waiting, --cancel ends the replay.
    """
    if (start is not None) + progress + cancel != 1:
        raise click.UsageError("choose one of: --from POSITION, --progress, --cancel")
    if queue is None and not progress:
        raise click.UsageError("name a QUEUE")
    with target.client(looks=progress) as client:
        if queue is None or progress:
            cursors = client.replay_progress([queue] if queue else [])
            return Reply([with_times(cursor) for cursor in cursors], _REPLAYS.of(cursors))
        if cancel:
            cursor = client.stop_replay(queue)
        else:
            cursor = client.replay(queue, start, until, where=where)
            if wait:
                cursor = _wait(client, queue, cursor)
    outcome = "cancelled" if cancel else "done" if cursor["done"] else "in progress"
    examined = f"{counted(cursor['seen'], 'message')} examined, {cursor['routed']:,} put into the queue"
    return Reply(with_times(cursor), f"replay of queue {queue!r} {outcome}: {examined}")


def _wait(client: QueueClient, queue: str, cursor: dict[str, Any]) -> dict[str, Any]:
    pause, is_reported, error = threading.Event(), False, ""
    try:
        with bar(f"replaying into {queue}") as update:
            while not cursor["done"]:
                update(cursor["position"] - cursor["start"], cursor["end"] - cursor["start"])
                if cursor["waiting"] and not is_reported:
                    note(f"queue {queue!r} is full or paused: the replay waits until it takes messages")
                    is_reported = True
                if cursor["error"] and cursor["error"] != error:
                    error = cursor["error"]
                    note(f"a step of the replay failed and is tried again: {error}")
                pause.wait(_LOOK_SECONDS)
                cursors = client.replay_progress([queue])
                if not cursors:
                    raise CommandError(f"queue {queue!r} was deleted", REFUSED)
                cursor = cursors[0]
    except KeyboardInterrupt:
        note(f"the replay continues in the broker: {next_command('replay --progress', queue)}, or with --cancel")
        raise
    return cursor


def _state(cursor: dict[str, Any]) -> str:
    if cursor["error"] and not cursor["done"]:
        return f"failing: {cursor['error']}"
    return "done" if cursor["done"] else "waits: full or paused" if cursor["waiting"] else "in progress"


def _percent(cursor: dict[str, Any]) -> int:
    total = cursor["end"] - cursor["start"]
    return int(100 * (cursor["position"] - cursor["start"]) // total) if total > 0 else 100


_REPLAYS = Table(
    (
        column("queue"),
        column("state", _state),
        column("%", _percent, is_number=True),
        *numbers(examined="seen", put_in="routed", per_s="rate"),
        column("began", lambda cursor: moment(cursor["started_at_ms"])),
    ),
    none="no replays",
)
