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
from ..target import Target, complete_queues, look_options
from ..terminal.output import note, print_json, say
from ..terminal.tables import Column, print_table

if TYPE_CHECKING:
    from ...queue_client import QueueClient

_LOOK_SECONDS = 0.2


@click.command(cls=Command, epilog='Example: opendata-queue replay orders --from 2h --where "amount > 100"')
@click.argument("queue", required=False, shell_complete=complete_queues)
@click.option(
    "--from", "start", type=POINT, help="begin here: first, a message id, a time (2026-11-21T09:30), how long ago (2h)"
)
@click.option("--until", type=POINT, default="now", show_default=True, help="end before this position")
@where_option
@click.option(
    "--wait/--no-wait", default=True, show_default=True, help="wait until it is done; it continues either way"
)
@click.option("--progress", is_flag=True, help="show the progress of all replays, or of this queue's")
@click.option("--stop", is_flag=True, help="stop this queue's replay where it is")
@look_options
def replay(
    queue: str | None,
    start: Any,
    until: Any,
    where: str,
    wait: bool,
    progress: bool,
    stop: bool,
    target: Target,
    as_json: bool,
) -> None:
    """Put stored messages into a queue again.

    The command selects messages that match the queue's filter or bindings and are not waiting or in flight there. Tasks
    run again. The broker works in the background: Ctrl-C ends the waiting, --stop ends the replay.
    """
    if (start is not None) + progress + stop != 1:
        raise click.UsageError("choose one of: --from POSITION, --progress, --stop")
    if queue is None and not progress:
        raise click.UsageError("name a QUEUE")
    with target.client(looks=progress) as client:
        if progress:
            _show(client.replay_progress([queue] if queue else []), as_json)
            return
        assert queue is not None
        if stop:
            cursor = client.stop_replay(queue)
        else:
            cursor = client.replay(queue, start, until, where=where)
            if wait:
                cursor = _wait(client, queue, cursor)
    if as_json:
        print_json(with_times(cursor))
        return
    outcome = "stopped" if stop else "done" if cursor["done"] else "in progress"
    say(
        f"replay of queue {queue!r} {outcome}: {counted(cursor['seen'], 'message')} examined, "
        f"{cursor['routed']:,} put into the queue"
    )


def _wait(client: QueueClient, queue: str, found: dict[str, Any]) -> dict[str, Any]:
    from ..terminal.progress import bar

    pause, is_reported, error = threading.Event(), False, ""
    try:
        with bar(f"replaying into {queue}") as update:
            while not found["done"]:
                update(found["position"] - found["start"], found["end"] - found["start"])
                if found["waiting"] and not is_reported:
                    note(f"queue {queue!r} is full or paused: the replay waits until it takes messages")
                    is_reported = True
                if found["error"] and found["error"] != error:
                    error = found["error"]
                    note(f"a step of the replay failed and is tried again: {error}")
                pause.wait(_LOOK_SECONDS)
                cursors = client.replay_progress([queue])
                if not cursors:
                    raise CommandError(f"queue {queue!r} was dropped", REFUSED)
                found = cursors[0]
    except KeyboardInterrupt:
        note(f"the replay continues in the broker: {next_command('replay --progress', queue)}, or with --stop")
        raise
    return found


def _show(found: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json([with_times(cursor) for cursor in found])
        return
    columns: list[Column] = [
        ("queue", False), ("state", False), ("%", True), ("examined", True), ("put in", True), ("per s", True),
        ("began", False),
    ]  # fmt: skip
    rows = []
    for cursor in found:
        state = "done" if cursor["done"] else "waits: full or paused" if cursor["waiting"] else "in progress"
        if cursor["error"] and not cursor["done"]:
            state = f"failing: {cursor['error']}"
        total = cursor["end"] - cursor["start"]
        share = 100 * (cursor["position"] - cursor["start"]) // total if total > 0 else 100
        began = moment(cursor["started_at_ms"])
        rows.append((cursor["queue"], state, share, cursor["seen"], cursor["routed"], cursor["rate"], began))
    print_table(columns, rows, none="no replays")
