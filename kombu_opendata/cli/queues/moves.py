"""Commands ``queue move``, ``queue copy`` and ``replay``: messages of a queue, or of the log, to a queue."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ...json_values import moment, with_times
from ...readable_text import counted
from ..exit_codes import NOT_NOW, REFUSED, Command, CommandError, missing_ids
from ..hints import next_command
from ..option_types import POINT, ids_option, limit_option, where_option
from ..output import Reply, Table, note
from ..progress import bar, watched
from ..target import Target, changes, complete_queues, reads_at_target

if TYPE_CHECKING:
    from ...protocol.messages import Moved
    from ...queue_client import QueueClient

_HELP = {
    "move": "Move ready and delayed messages to another queue.",
    "copy": "Copy ready and delayed messages to another queue.\n\nEach is then in both, stored once with the same id.",
}
_DETAILS = (
    "Messages in flight stay, and so do those that arrive during the move. If TARGET becomes full, the command reports "
    "its progress and exits with 5, as it does if only some messages fit its filter. Run it again to continue, also "
    "after an interruption. No message is lost or duplicated."
)


def _command(verb: str, done: str) -> click.Command:
    @click.command(
        verb,
        cls=Command,
        help=f"{_HELP[verb]}\n\n{_DETAILS}",
        epilog=f"Example: opendata-queue queue {verb} orders orders-eu --where \"region = 'eu'\"",
    )
    @click.argument("source", shell_complete=complete_queues)
    @click.argument("target_queue", metavar="TARGET", shell_complete=complete_queues)
    @where_option
    @ids_option
    @click.option("--state", type=click.Choice(("ready", "delayed")), help="only messages in this state")
    @limit_option("how many at most; 0 (the default): all")
    @changes
    def run(
        client: QueueClient, source: str, target_queue: str, where: str, ids: tuple[int, ...], state: Any, limit: int
    ) -> Reply:
        options: Any = {"where": where, "ids": ids or None, "limit": limit, **({"states": (state,)} if state else {})}
        call = client.copy_messages if verb == "copy" else client.move_messages
        moved = _watched(client, verb, source, target_queue, limit, lambda: call(source, target_queue, **options))
        return _reply(moved, source, target_queue, done, ids, limit)

    return run


move, copy = _command("move", "moved"), _command("copy", "copied")


def _watched(client: QueueClient, verb: str, source: str, target: str, limit: int, work: Callable[[], Moved]) -> Moved:
    """Do the work, and show the number of messages that the target has received, also after a Ctrl-C."""
    source_metrics, count_before = client.metrics(source), client.metrics(target).total
    total = source_metrics.ready + source_metrics.delayed

    def received() -> int:
        return client.metrics(target).total - count_before

    try:
        return watched(f"{verb} to {target}", work, lambda: (received(), min(total, limit or total)))
    except KeyboardInterrupt:
        count = counted(received(), "message")
        note(f"queue {target!r} got {count} until now: the same command continues with the rest")
        raise


def _reply(moved: Moved, source: str, target: str, done: str, ids: tuple[int, ...], limit: int) -> Reply:
    remaining = {
        "already there": moved.already,
        "expired": moved.expired,
        "dead letters in transit": moved.waiting,
        f"the filter of queue {target!r} does not match": moved.unmatched,
    }
    verb = "stayed" if done == "moved" else "left out"
    details = "".join(f"; {number:,} {verb} ({reason})" for reason, number in remaining.items() if number)
    counts = {name: getattr(moved, name) for name in ("already", "expired", "waiting", "unmatched", "is_full")}
    return Reply(
        {"source": source, "target": target, done: moved.count, **counts},
        f"{counted(moved.count, 'message')} {done} from queue {source!r} to {target!r}{details}",
        error=_incomplete(moved, target, done)
        or missing_ids(ids, moved.count + sum(remaining.values()), limit, "messages of the queue that match"),
    )


def _incomplete(moved: Moved, target: str, done: str) -> CommandError | None:
    if moved.is_full:
        return CommandError(f"queue {target!r} is full: the same command continues when there is room", NOT_NOW)
    if moved.waiting:
        text = f"{counted(moved.waiting, 'message')} not {done}: they are dead letters in transit. Try again"
        return CommandError(text, NOT_NOW)
    if moved.unmatched:
        text = f"{counted(moved.unmatched, 'message')} not {done}: the filter of queue {target!r} does not match"
        return CommandError(text, NOT_NOW if moved.count else REFUSED)
    return None


#: interval at which the progress of a replay is read
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
) -> Reply:
    """Put stored messages into a queue again.

    The command selects messages that match the queue's filter or bindings and are not ready, delayed or in flight
    there. Tasks run again. The broker works in the background: Ctrl-C ends the waiting, --cancel ends the replay.
    """
    if (start is not None) + progress + cancel != 1:
        raise click.UsageError("choose one of: --from POSITION, --progress, --cancel")
    if queue is None and not progress:
        raise click.UsageError("name a QUEUE")
    with target.client(read_only=progress) as client:
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
    pause = threading.Event()
    is_reported = False
    error = ""
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
    {
        "queue": "", "state": _state, "%#": _percent, "examined#": "seen", "put in#": "routed", "per s#": "rate",
        "began": lambda cursor: moment(cursor["started_at_ms"]),
    },
    none="no replays",
)  # fmt: skip
