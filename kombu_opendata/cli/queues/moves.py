"""Commands ``queue move`` and ``queue copy``: ready and delayed messages to another queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ...readable_text import counted
from ..exit_codes import NOT_NOW, REFUSED, Command, CommandError, missing_ids
from ..option_types import StateChoice, ids_option, limit_option, where_option
from ..output import Reply, note
from ..progress import watched
from ..target import changes, complete_queues

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
    @click.option("--state", type=StateChoice("ready", "delayed"), help="only messages in this state")
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
    """Do the work, and show the number of messages that the target has received; also if Ctrl-C ends it."""
    source_metrics, count_before = client.metrics(source), client.metrics(target).total
    total = source_metrics.visible + source_metrics.delayed

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
