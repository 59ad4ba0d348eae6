"""Commands ``archive``: list, count and delete the done messages of a queue."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from ...json_values import plain
from ...readable_text import age, counted
from ..exit_codes import CommandGroup, check_ids, confirm
from ..option_types import LENGTH, every_queue_option, ids_option, limit_option, listed
from ..target import Target, call_options, look_options, queue_argument, queues_argument, yes_option
from ..terminal.output import note, print_json, print_json_line, say
from ..terminal.tables import Column, print_table

if TYPE_CHECKING:
    from ...queue_client.message_models import MessageState

_COLUMNS: list[Column] = [("id", True), ("settled", False), ("attempts", True)]


@click.group("archive", cls=CommandGroup)
def archive_group() -> None:
    """List, count and delete archived (done) messages."""


@archive_group.command("list", epilog="Example: opendata-queue archive list orders -n 0")
@queue_argument
@limit_option("how many; 0: all", 20)
@look_options
def list_archived(queue: str, limit: int, target: Target, as_json: bool) -> None:
    """List the archived messages of a queue, oldest first.

    With --json, each is a separate document on its line.
    """
    with target.client(looks=True) as client:
        states = client.iter_by_state(queue, "done")
        page = islice(states, limit or None)
        if as_json:
            for state in page:
                print_json_line(_as_json(state))
            return
        rows = [(str(state.id), state.settled_at, state.attempts) for state in page]
        has_more = next(states, None) is not None
    print_table(_COLUMNS, rows, none=f"queue {queue!r} has no archived messages")
    if has_more:
        note(f"these are the oldest {limit:,}; -n 0 lists all")


def _as_json(one: MessageState) -> dict[str, Any]:
    return {name: plain(getattr(one, name)) for name in ("id", "queue", "state", "attempts", "settled_at")}


@archive_group.command(epilog="Example: opendata-queue archive count")
@queues_argument
@every_queue_option
@look_options
def count(queues: tuple[str, ...], every: bool, target: Target, as_json: bool) -> None:
    """Count the archived messages of queues.

    Without QUEUE, of all queues. A count is exact up to 4,000,000 messages in a queue.
    """
    with target.client(looks=True) as client:
        metrics = {name: client.metrics(name) for name in queues} if queues else client.metrics_all()
    counts = {name: figures.done for name, figures in metrics.items()}
    if as_json:
        print_json(counts)
    else:
        print_table(
            [("queue", False), ("archived", True)], listed(counts, every or bool(queues)).items(), none="no queues"
        )


@archive_group.command(epilog="Example: opendata-queue archive delete orders --older-than 30d")
@queue_argument
@click.option("--older-than", type=LENGTH, help="messages that were settled at least this long ago: 90s, 12h, 30d")
@ids_option
@click.option("--all", "everything", is_flag=True, help="all of them")
@yes_option
@call_options
def delete(
    queue: str,
    older_than: float | None,
    ids: tuple[int, ...],
    everything: bool,
    yes: bool,
    target: Target,
    as_json: bool,
) -> None:
    """Delete archived messages of a queue: by age, by id, or all.

    This can't be undone.
    """
    from ..terminal.progress import is_shown, watched

    if (older_than is not None) + bool(ids) + everything != 1:
        raise click.UsageError("choose one of: --older-than, --id, --all")
    with target.client() as client:
        total = client.metrics(queue).done
        confirm(_question(queue, counted(total, "archived message"), older_than, len(ids)), yes)

        def work() -> int:
            return client.delete_settled(queue, "done", older_than=older_than, ids=ids or None, all=everything)

        def progress() -> tuple[int, int]:
            return max(0, total - client.metrics(queue).done), total

        deleted = watched(f"deleting {queue}", work, progress) if is_shown() else work()
    if as_json:
        print_json({"queue": queue, "state": "done", "deleted": deleted})
    else:
        say(f"{counted(deleted, 'archived message')} deleted from queue {queue!r}")
    check_ids(ids, deleted, 0, "archived messages of the queue")


def _question(queue: str, have: str, older_than: float | None, ids: int) -> str:
    if ids:
        return f"Delete {counted(ids, 'message')} from queue {queue!r}, which has {have}?"
    if older_than is not None:
        return f"Delete what was settled at least {age(older_than)} ago from queue {queue!r}, which has {have}?"
    return f"Delete {have} from queue {queue!r}?"
