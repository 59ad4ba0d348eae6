"""Commands ``failed retry``, ``failed archive`` and ``failed delete``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ...readable_text import counted
from ..exit_codes import DAMAGED, NOT_NOW, REFUSED, Command, CommandError, confirm, missing_ids, require_confirmation
from ..hints import next_command
from ..option_types import LENGTH, ids_option, limit_option, where_option
from ..output import Reply, note
from ..progress import bar, is_shown, watched
from ..target import Target, at_target, changes, complete_queues, queue_argument, yes_option
from .failure_options import failure_options, filters_of, selects

if TYPE_CHECKING:
    from ...protocol.messages import FailuresRetried
    from ...queue_client import QueueClient

_WHY_LEFT = {
    "already": "already there, or retried by another user",
    "expired": "expired",
    "waiting": "dead letters in transit",
    "unmatched": "the filter of the queue does not match them",
    "collected": "no longer stored",
    "not_tasks": "not tasks of Celery",
    "without_queue": "their queue does not exist: give --to",
    "paused": "their queue is paused",
    "damaged": "can't be read",
}


@click.command(cls=Command, epilog="Example: opendata-queue failed retry orders --task mail.send --since 2h")
@failure_options
@click.option("--all", "everything", is_flag=True, help="all of all queues, if no other option selects")
@click.option(
    "--to", "into", default="", shell_complete=complete_queues, help="the queue that gets them instead of their queues"
)
@limit_option("how many at most; 0 (the default): all")
@at_target
def retry(everything: bool, into: str, limit: int, target: Target, **parameters: Any) -> Reply:
    """Retry failed messages and tasks.

    It applies to all failures in these queues, or to those that the options select. A failed message becomes ready
    again with the same id, and its attempts are reset to 0. A task whose message was acknowledged is published again as
    a new message. It keeps its id, its arguments and the rest of its chain; its eta, its retries and its place in a
    chord are dropped. To continue an interrupted command, repeat it; nothing runs twice. Exits with 4 if tasks can't
    be read because the store is damaged, with 5 if only some run again, and with 1 if none does.
    """
    if everything == selects(parameters):
        raise click.UsageError("say what to run again: QUEUE, --id, --task or another option, or --all")
    ids, arguments = parameters["ids"], filters_of(parameters)
    with target.client() as client:
        total = _count(client, arguments)
        done = _in_steps(
            "running again",
            limit or total,
            lambda progress: client.retry_failures(into, limit=limit, progress=progress, **arguments),
        )
        if ids and not done.handled and not any(done.left.values()) and not done.full:
            raise _nothing(client, ids, arguments)
    return Reply(
        {"target": into, **done.values},
        retried_text(done, into),
        error=incomplete(done)
        or missing_ids(ids, done.handled + sum(done.left.values()), limit, "failures that match"),
    )


def retried_text(done: FailuresRetried, into: str = "") -> str:
    """Return the counts of a retry, which put all into one queue, or into their own."""
    remaining = "".join(f"; {count:,} stayed ({_WHY_LEFT[reason]})" for reason, count in done.left.items())
    outcomes = {
        f"{counted(done.redriven, 'message')} ready again": done.redriven,
        f"{counted(done.published, 'task')} published again": done.published,
    }
    text = ", ".join(text for text, count in outcomes.items() if count) or "nothing runs again"
    return f"{text}{f' in queue {into!r}' if into else ''}{remaining}"


def _count(client: QueueClient, filters: Any) -> int:
    """Return the number of failures that match."""
    return sum(group.count for group in client.group_failures(["queue"], **filters).groups)


def incomplete(done: FailuresRetried) -> CommandError | None:
    """Return the error for the failures that did not run again, if there are any."""
    if done.damaged:
        return CommandError(f"{counted(done.damaged, 'task')} can't run again: {done.damage}", DAMAGED)
    if done.full:
        return CommandError(
            f"queue {done.full!r} is full or paused: the rest stays failed until it takes messages", NOT_NOW
        )
    if done.paused:
        return CommandError(
            "publishes to a queue are paused: after `queue resume`, the same command continues", NOT_NOW
        )
    if not done.refused:
        return None
    reasons = ", ".join(f"{count:,} {_WHY_LEFT[name]}" for name, count in done.refused.items())
    code = NOT_NOW if done.handled or "waiting" in done.refused else REFUSED
    return CommandError(f"{counted(sum(done.refused.values()), 'failure')} did not run again: {reasons}", code)


def _nothing(client: QueueClient, ids: tuple[str, ...], filters: Any) -> CommandError:
    """Return the reason why no failure with these ids can be run again."""
    handled = client.list_failures(**filters | {"kinds": ["acknowledged"]}, handled=True, limit=1).items
    if not handled:
        return CommandError(
            f"nothing that failed has the id {', '.join(ids)}: '{next_command('failed list')}' shows all"
        )
    failure = handled[0]
    again = f" as message {failure.retried_as}" if failure.retried_as >= 0 else ""
    outcome = "deleted" if failure.handled == "dismissed" else failure.handled
    return CommandError(f"message {failure.message_id} was already {outcome}{again}")


def _in_steps(label: str, total: int, work: Callable[[Callable[[Any], object]], Any]) -> Any:
    """Do the work with a progress bar, and report the progress if it is interrupted."""
    handled = 0
    with bar(label) as update:

        def progress(done: Any) -> None:
            nonlocal handled
            handled = done.handled
            update(handled, total)

        try:
            return work(progress)
        except KeyboardInterrupt:
            note(f"at least {handled:,} done; the same command continues with the rest")
            raise


@click.command(cls=Command, epilog="Example: opendata-queue failed archive orders --older-than 7d")
@queue_argument
@where_option
@ids_option
@click.option("--older-than", type=LENGTH, help="only messages that failed at least this long ago: 90s, 12h, 30d")
@limit_option("how many at most; 0 (the default): all")
@changes
def archive(
    client: QueueClient, queue: str, where: str, ids: tuple[int, ...], older_than: float | None, limit: int
) -> Reply:
    """Archive failed messages, all or some.

    They stay complete until they are deleted. `failed list --archived` shows them, and `failed retry --archived` makes
    them ready again.
    """
    total = client.metrics(queue).failed if is_shown() else 0
    archived = watched(
        f"archiving {queue}",
        lambda: client.archive_failed(queue, where=where, ids=ids or None, older_than=older_than, limit=limit),
        lambda: (max(0, total - client.metrics(queue).failed), total),
    )
    return Reply(
        {"queue": queue, "archived": archived},
        f"{counted(archived, 'failed message')} of queue {queue!r} archived",
        error=missing_ids(ids, archived, limit, "failed messages of the queue that match"),
    )


@click.command(cls=Command, epilog="Example: opendata-queue failed delete orders --id 17 --id 18")
@failure_options
@click.option("--all", "everything", is_flag=True, help="all in these queues, or in all queues")
@limit_option("how many at most; 0 (the default): all")
@yes_option
@at_target
def delete(everything: bool, limit: int, yes: bool, target: Target, **parameters: Any) -> Reply:
    """Delete failures of messages and tasks. This can't be undone. The history still shows that they failed."""
    queues, ids = parameters["queues"], parameters["ids"]
    if everything == selects({**parameters, "queues": ()}):
        raise click.UsageError("say what to delete: --id, --task, --until or another option, or --all")
    arguments = filters_of(parameters)
    require_confirmation(yes)
    with target.client() as client:
        total = _count(client, arguments)
        where = f" of queue {', '.join(map(repr, queues))}" if queues else " of all queues"
        confirm(f"Delete {counted(min(total, limit or total), 'failure')}{where}?", yes)
        done = _in_steps(
            "deleting",
            limit or total,
            lambda progress: client.delete_failures(limit=limit, progress=progress, **arguments),
        )
    return Reply(
        {**done.values, "deleted_tasks": done.dismissed},
        f"{counted(done.deleted, 'failed message')} and {counted(done.dismissed, 'failed task')} deleted",
        error=missing_ids(ids, done.handled, limit, "failures that match"),
    )
