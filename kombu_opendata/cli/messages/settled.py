"""``archive`` and ``failed``: the settled messages of a queue: list, count, archive, redrive, delete."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from ..exit_codes import NOT_NOW, Failure, Group, confirm
from ..option_types import LENGTH, ids_option, limit_option, where_option
from ..target import Target, call_options, complete_queues, queue_argument, queues_argument, yes_option
from ..terminal.output import age, counted, note, plain, print_json, print_json_line, say
from ..terminal.tables import Column, print_table

if TYPE_CHECKING:
    from ...queue_client import QueueClient
    from ...queue_client.message_models import MessageState
    from ...queue_client.queue_models import QueueMetrics

_WORDS = {"done": "archived messages", "failed": "failed messages", "archived_failed": "archived failed messages"}
_COLUMNS: list[Column] = [("id", True), ("settled", False), ("attempts", True)]


@click.group("archive", cls=Group)
def archive_group() -> None:
    """Archived messages (done ones): list, count, delete."""


@click.group("failed", cls=Group)
def failed_group() -> None:
    """Failed messages: list, count, archive, redrive, delete."""


def _archived_option(state: str) -> Callable[[Any], Any]:
    """``--archived``, for commands about failed messages."""
    if state != "failed":
        return lambda function: function
    return click.option("--archived", is_flag=True, help="the failed messages that `failed archive` set aside")


def _chosen(state: str, archived: bool) -> str:
    return "archived_failed" if archived else state


# ---------------------------------------------------------------------- looking
def _list(queue: str, state: Any, limit: int, target: Target, as_json: bool) -> None:
    with target.client(looks=True) as client:
        found = client.iter_by_state(queue, state)
        shown = islice(found, limit or None)
        if as_json:
            for one in shown:
                print_json_line(_as_json(one))
            return
        rows = [(str(one.id), one.settled_at, one.attempts) for one in shown]
        has_more = next(found, None) is not None
    print_table(_COLUMNS, rows, none=f"queue {queue!r} has no {_WORDS[state]}")
    if has_more:
        note(f"these are the oldest {limit:,}; -n 0 lists all")


def _as_json(one: MessageState) -> dict[str, Any]:
    return {name: plain(getattr(one, name)) for name in ("id", "queue", "state", "attempts", "settled_at")}


def _list_command(group: click.Group, state: str, words: str) -> None:
    @group.command("list", help=f"List the {words} of a queue, oldest first.\n\nWith --json, one document a line.")
    @queue_argument
    @limit_option("how many; 0: all", 20)
    @_archived_option(state)
    @call_options
    def list_settled(queue: str, limit: int, target: Target, as_json: bool, archived: bool = False) -> None:
        _list(queue, _chosen(state, archived), limit, target, as_json)


def _metrics(target: Target, queues: tuple[str, ...]) -> dict[str, QueueMetrics]:
    with target.client(looks=True) as client:
        return {name: client.metrics(name) for name in queues} if queues else client.metrics_all()


@archive_group.command()
@queues_argument
@call_options
def count(queues: tuple[str, ...], target: Target, as_json: bool) -> None:
    """Count the archived messages of queues.

    Without QUEUE, of all queues. A count is exact up to 4,000,000 messages in a queue.
    """
    found = {name: one.done for name, one in _metrics(target, queues).items()}
    if as_json:
        print_json(found)
    else:
        print_table([("queue", False), ("archived", True)], found.items(), none="no queues")


@failed_group.command("count")
@queues_argument
@call_options
def count_failed(queues: tuple[str, ...], target: Target, as_json: bool) -> None:
    """Count the failed and the archived failed messages of queues.

    Without QUEUE, of all queues.
    """
    found = {name: (one.failed, one.archived_failed) for name, one in _metrics(target, queues).items()}
    if as_json:
        print_json({name: {"failed": failed, "archived_failed": kept} for name, (failed, kept) in found.items()})
    else:
        rows = [(name, *counts) for name, counts in found.items()]
        print_table([("queue", False), ("failed", True), ("archived", True)], rows, none="no queues")


# ---------------------------------------------------------------------- archiving
@failed_group.command()
@queue_argument
@where_option
@ids_option
@click.option("--older-than", type=LENGTH, help="only messages that failed at least this long ago: 90s, 12h, 30d")
@limit_option("how many at most; 0 (the default): all")
@call_options
def archive(
    queue: str, where: str, ids: tuple[int, ...], older_than: float | None, limit: int, target: Target, as_json: bool
) -> None:
    """Set failed messages aside, all or some.

    They stay complete until they are deleted. `failed list --archived` shows them, and `failed redrive --archived`
    makes them available again.
    """
    with target.client() as client:
        archived = _watched(
            client, queue, "failed", "archiving",
            lambda: client.archive_failed(queue, where=where, ids=ids or None, older_than=older_than, limit=limit),
        )  # fmt: skip
    if as_json:
        print_json({"queue": queue, "archived": archived})
    else:
        say(f"{counted(archived, 'failed message')} of queue {queue!r} archived")


# ---------------------------------------------------------------------- deleting
def _delete_command(group: click.Group, state: str, words: str) -> None:
    @group.command("delete", help=f"Delete {words} of a queue: by age, by id, or all.\n\nThis can't be undone.")
    @queue_argument
    @click.option("--older-than", type=LENGTH, help="messages that were settled at least this long ago: 90s, 12h, 30d")
    @ids_option
    @click.option("--all", "everything", is_flag=True, help="all of them")
    @_archived_option(state)
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
        archived: bool = False,
    ) -> None:
        which: Any = _chosen(state, archived)
        words = _WORDS[which]
        if (older_than is not None) + bool(ids) + everything != 1:
            raise click.UsageError("choose one of: --older-than, --id, --all")
        given = {"older_than": older_than, "ids": ids or None, "all": everything}
        with target.client() as client:
            have = _settled(client, queue, which)
            confirm(_question(queue, counted(have, words.removesuffix("s")), older_than, len(ids)), yes)
            deleted = _watched(client, queue, which, "deleting", lambda: client.delete_settled(queue, which, **given))  # type: ignore[arg-type]
        if as_json:
            print_json({"queue": queue, "state": which, "deleted": deleted})
        else:
            say(f"{counted(deleted, words.removesuffix('s'))} deleted from queue {queue!r}")


def _question(queue: str, have: str, older_than: float | None, ids: int) -> str:
    if ids:
        return f"Delete {counted(ids, 'message')} from queue {queue!r}, which has {have}?"
    if older_than is not None:
        return f"Delete what was settled at least {age(older_than)} ago from queue {queue!r}, which has {have}?"
    return f"Delete {have} from queue {queue!r}?"


def _settled(client: QueueClient, queue: str, state: str) -> int:
    return int(getattr(client.metrics(queue), state))


def _watched(client: QueueClient, queue: str, state: str, verb: str, work: Callable[[], Any]) -> Any:
    """Do the work, and show how many messages are done."""
    from ..terminal.progress import is_shown, watched

    if not is_shown():
        return work()
    total = _settled(client, queue, state)
    return watched(f"{verb} {queue}", work, lambda: (max(0, total - _settled(client, queue, state)), total))


for _group, _state in ((archive_group, "done"), (failed_group, "failed")):
    _list_command(_group, _state, _WORDS[_state])
    _delete_command(_group, _state, _WORDS[_state])


# ---------------------------------------------------------------------- redrive
@failed_group.command()
@queue_argument
@click.option(
    "--to", "into", default="", help="put them into this queue instead of their own", shell_complete=complete_queues
)
@where_option
@ids_option
@limit_option("how many at most; 0 (the default): all")
@_archived_option("failed")
@call_options
def redrive(
    queue: str, into: str, where: str, ids: tuple[int, ...], limit: int, archived: bool, target: Target, as_json: bool
) -> None:
    """Make failed messages available again.

    They keep their ids and start with no attempts. Exits with 5 if the queue is full before all of them are moved.
    """
    with target.client() as client:
        state: Any = _chosen("failed", archived)
        done = _watched(
            client, queue, state, "redriving",
            lambda: client.redrive(queue, into, where=where, ids=ids or None, limit=limit, state=state),
        )  # fmt: skip
    into = into or queue
    stayed = {"already there": done.already, "expired": done.expired, "dead letters in transit": done.waiting}
    if as_json:
        counts = {name: getattr(done, name) for name in ("moved", "already", "expired", "waiting", "is_full")}
        print_json({"queue": queue, "target": into, **counts})
    else:
        rest = "".join(f"; {number:,} stayed ({why})" for why, number in stayed.items() if number)
        is_or_are = "is" if done.moved == 1 else "are"
        say(f"{counted(done.moved, 'message')} {is_or_are} available again in queue {into!r}{rest}")
    if done.is_full:
        raise Failure(f"queue {into!r} is full: the rest stays failed until there is room", NOT_NOW)
