"""``archive`` and ``failed``: what is settled in a queue, and what can be done with it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from .exit_codes import NOT_NOW, Failure, Group, confirm
from .option_types import LENGTH, MESSAGE_ID
from .target import complete_queues, find, json_option, queue_argument, target_options, yes_option
from .terminal.output import Column, age, counted, note, plain, print_json, print_json_line, print_table, say

if TYPE_CHECKING:
    from ..queue_client import QueueClient
    from ..queue_client.models import MessageState

_WORDS = {"done": "archived messages", "failed": "failed messages", "archived_failed": "archived failed messages"}
_COLUMNS: list[Column] = [("id", True), ("settled", False), ("attempts", True)]


@click.group("archive", cls=Group)
def archive_group() -> None:
    """Archived (done) messages: list, count, delete."""


@click.group("failed", cls=Group)
def failed_group() -> None:
    """Failed messages: list, count, archive, redrive, delete."""


def _archived_option(state: str) -> Callable[[Any], Any]:
    """A flag for the commands about failed messages."""
    if state != "failed":
        return lambda function: function
    return click.option("--archived", is_flag=True, help="those that `failed archive` set aside")


def _chosen(state: str, archived: bool) -> str:
    return "archived_failed" if archived else state


# ---------------------------------------------------------------------- looking
def _list(queue: str, state: Any, limit: int, place: tuple[str | None, str | None], as_json: bool) -> None:
    with find(*place).client(looks=True) as client:
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
    @group.command("list", help=f"List the {words} of a queue, the oldest first.\n\nWith --json, one document a line.")
    @queue_argument
    @click.option(
        "--limit", "-n", type=click.IntRange(0), metavar="N", default=20, show_default=True, help="how many; 0: all"
    )
    @_archived_option(state)
    @target_options
    @json_option
    def list_settled(
        queue: str, limit: int, url: str | None, tls_ca: str | None, as_json: bool, archived: bool = False
    ) -> None:
        _list(queue, _chosen(state, archived), limit, (url, tls_ca), as_json)


@archive_group.command()
@click.argument("queues", nargs=-1, metavar="[QUEUE]...", shell_complete=complete_queues)
@target_options
@json_option
def count(queues: tuple[str, ...], url: str | None, tls_ca: str | None, as_json: bool) -> None:
    """Count the archived messages of queues.

    Of all queues, or of those named. A count is exact up to 4,000,000 in a queue.
    """
    with find(url, tls_ca).client(looks=True) as client:
        found = {name: client.metrics(name) for name in queues} if queues else client.metrics_all()
    if as_json:
        print_json({name: one.done for name, one in found.items()})
    else:
        print_table(
            [("queue", False), ("archived", True)], [(name, one.done) for name, one in found.items()], none="no queues"
        )


@failed_group.command("count")
@click.argument("queues", nargs=-1, metavar="[QUEUE]...", shell_complete=complete_queues)
@target_options
@json_option
def count_failed(queues: tuple[str, ...], url: str | None, tls_ca: str | None, as_json: bool) -> None:
    """Count the failed and the archived failed messages of queues.

    Of all queues, or of those named.
    """
    with find(url, tls_ca).client(looks=True) as client:
        found = {name: client.metrics(name) for name in queues} if queues else client.metrics_all()
    if as_json:
        print_json(
            {name: {"failed": one.failed, "archived_failed": one.archived_failed} for name, one in found.items()}
        )
    else:
        rows = [(name, one.failed, one.archived_failed) for name, one in found.items()]
        print_table([("queue", False), ("failed", True), ("archived", True)], rows, none="no queues")


# ---------------------------------------------------------------------- archiving
@failed_group.command()
@queue_argument
@click.option("--where", default="", metavar="SELECTOR", help="only messages whose headers this is true of")
@click.option("--id", "ids", multiple=True, type=MESSAGE_ID, help="this message; may be repeated")
@click.option("--older-than", type=LENGTH, help="only what failed at least this long ago: 90s, 12h, 30d")
@click.option(
    "--limit", "-n", type=click.IntRange(0), metavar="N", default=0, help="how many at most; 0 (the default): all"
)
@target_options
@json_option
def archive(
    queue: str,
    where: str,
    ids: tuple[int, ...],
    older_than: float | None,
    limit: int,
    url: str | None,
    tls_ca: str | None,
    as_json: bool,
) -> None:
    """Set failed messages aside, all or some.

    They keep everything until they are deleted. `failed list --archived` shows them, `failed redrive --archived` makes
    them available again.
    """
    with find(url, tls_ca).client() as client:
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
    @click.option("--older-than", type=LENGTH, help="settled at least this long ago: 90s, 12h, 30d")
    @click.option("--id", "ids", multiple=True, type=MESSAGE_ID, help="this message; may be repeated")
    @click.option("--all", "everything", is_flag=True, help="all messages of the list")
    @_archived_option(state)
    @yes_option
    @target_options
    @json_option
    def delete(
        queue: str,
        older_than: float | None,
        ids: tuple[int, ...],
        everything: bool,
        yes: bool,
        url: str | None,
        tls_ca: str | None,
        as_json: bool,
        archived: bool = False,
    ) -> None:
        which: Any = _chosen(state, archived)
        words = _WORDS[which]
        if (older_than is not None) + bool(ids) + everything != 1:
            raise click.UsageError("choose one of: --older-than, --id, --all")
        given = {"older_than": older_than, "ids": ids or None, "all": everything}
        with find(url, tls_ca).client() as client:
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
    """Do it, and show how many are gone."""
    from .terminal.progress import is_shown, watched

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
    "--to", "target", default="", help="put them into this queue instead of their own", shell_complete=complete_queues
)
@click.option("--where", default="", metavar="SELECTOR", help="only messages whose headers this is true of")
@click.option("--id", "ids", multiple=True, type=MESSAGE_ID, help="this message; may be repeated")
@click.option(
    "--limit", "-n", type=click.IntRange(0), metavar="N", default=0, help="how many at most; 0 (the default): all"
)
@_archived_option("failed")
@target_options
@json_option
def redrive(
    queue: str,
    target: str,
    where: str,
    ids: tuple[int, ...],
    limit: int,
    archived: bool,
    url: str | None,
    tls_ca: str | None,
    as_json: bool,
) -> None:
    """Make failed messages available again.

    They keep their ids and begin with no attempts. Exits with 5 when the queue is full before all are moved.
    """
    with find(url, tls_ca).client() as client:
        state: Any = _chosen("failed", archived)
        done = _watched(
            client, queue, state, "redriving",
            lambda: client.redrive(queue, target, where=where, ids=ids or None, limit=limit, state=state),
        )  # fmt: skip
    into = target or queue
    stayed = {"already there": done.already, "expired": done.expired, "dead letters on their way": done.waiting}
    if as_json:
        counts = {name: getattr(done, name) for name in ("moved", "already", "expired", "waiting", "is_full")}
        print_json({"queue": queue, "target": into, **counts})
    else:
        rest = "".join(f"; {number:,} stayed ({why})" for why, number in stayed.items() if number)
        is_or_are = "is" if done.moved == 1 else "are"
        say(f"{counted(done.moved, 'message')} {is_or_are} available again in queue {into!r}{rest}")
    if done.is_full:
        raise Failure(f"queue {into!r} is full: the rest stays failed, until there is room", NOT_NOW)
