"""Commands ``queue move`` and ``queue copy``: waiting messages to another queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ...readable_text import counted
from ..exit_codes import NOT_NOW, REFUSED, Command, CommandError, check_ids
from ..option_types import ids_option, limit_option, where_option
from ..target import Target, call_options, complete_queues
from ..terminal.output import note, print_json, say

if TYPE_CHECKING:
    from ...protocol.messages import Moved
    from ...queue_client import QueueClient

_STATES = ("available", "delayed")
_HELP = {
    "move": "Move waiting messages to another queue.",
    "copy": "Copy waiting messages to another queue: they wait in both.\n\nEach is stored once, and keeps its id.",
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
    @click.option("--state", type=click.Choice(_STATES), help="only messages that can be delivered now, or later")
    @limit_option("how many at most; 0 (the default): all")
    @call_options
    def run(
        source: str,
        target_queue: str,
        where: str,
        ids: tuple[int, ...],
        state: Any,
        limit: int,
        target: Target,
        as_json: bool,
    ) -> None:
        states: Any = (state,) if state else _STATES
        with target.client() as client:
            call = client.copy_messages if verb == "copy" else client.move_messages
            moved = _watched(
                client, f"{verb} to {target_queue}", source, target_queue, limit,
                lambda: call(source, target_queue, where=where, ids=ids or None, limit=limit, states=states),
            )  # fmt: skip
        _print(moved, source, target_queue, done, as_json)
        remaining = moved.already + moved.expired + moved.waiting + moved.unmatched
        check_ids(ids, moved.count + remaining, limit, "waiting messages of the queue that match")

    return run


move, copy = _command("move", "moved"), _command("copy", "copied")


def _watched(client: QueueClient, label: str, source: str, target: str, limit: int, work: Callable[[], Moved]) -> Moved:
    """Do the work, and show the number of messages that the target has received; also if Ctrl-C ends it."""
    from ..terminal.progress import watched

    source_metrics, count_before = client.metrics(source), client.metrics(target).total
    total = source_metrics.visible + source_metrics.delayed

    def come() -> int:
        return client.metrics(target).total - count_before

    try:
        return watched(label, work, lambda: (come(), min(total, limit or total)))
    except KeyboardInterrupt:
        note(f"queue {target!r} got {counted(come(), 'message')} until now: the same command continues with the rest")
        raise


def _print(found: Moved, source: str, target: str, done: str, as_json: bool) -> None:
    remaining = {
        "already there": found.already,
        "expired": found.expired,
        "dead letters in transit": found.waiting,
        f"the filter of queue {target!r} does not match": found.unmatched,
    }
    if as_json:
        counts = {name: getattr(found, name) for name in ("already", "expired", "waiting", "unmatched", "is_full")}
        print_json({"source": source, "target": target, done: found.count, **counts})
    else:
        verb = "stayed" if done == "moved" else "left out"
        details = "".join(f"; {number:,} {verb} ({reason})" for reason, number in remaining.items() if number)
        say(f"{counted(found.count, 'message')} {done} from queue {source!r} to {target!r}{details}")
    if found.is_full:
        raise CommandError(f"queue {target!r} is full: the same command continues when there is room", NOT_NOW)
    if found.waiting:
        text = f"{counted(found.waiting, 'message')} not {done}: they are dead letters in transit. Try again"
        raise CommandError(text, NOT_NOW)
    if found.unmatched:
        text = f"{counted(found.unmatched, 'message')} not {done}: the filter of queue {target!r} does not match"
        raise CommandError(text, NOT_NOW if found.count else REFUSED)
