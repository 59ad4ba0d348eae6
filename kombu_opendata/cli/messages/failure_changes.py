"""Commands ``failed retry``, ``failed archive`` and ``failed delete``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ...readable_text import counted
from ..exit_codes import DAMAGED, NOT_NOW, REFUSED, Command, CommandError, check_ids, confirm
from ..hints import next_command
from ..option_types import LENGTH, ids_option, limit_option, where_option
from ..target import Target, call_options, complete_queues, queue_argument, yes_option
from ..terminal.output import note, print_json, say
from .failure_filters import count_of, failure_options, filters_of, is_chosen

if TYPE_CHECKING:
    from ...protocol.messages import FailuresRetried

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


# ---------------------------------------------------------------------- retry
@click.command(cls=Command, epilog="Example: opendata-queue failed retry orders --task mail.send --since 2h")
@failure_options
@click.option("--all", "everything", is_flag=True, help="all of all queues, if no other option selects")
@click.option(
    "--to", "into", default="", help="the queue that gets them instead of their queues", shell_complete=complete_queues
)
@limit_option("how many at most; 0 (the default): all")
@call_options
def retry(everything: bool, into: str, limit: int, target: Target, as_json: bool, **given: Any) -> None:
    """Retry failed messages and tasks.

    It applies to all failures in these queues, or to those that the options select. A failed message becomes available
    again with the same id, and starts with no attempts. A task whose message was acknowledged is published again with a
    new id: the same task, root_id and remaining chain, without eta and retries, and outside of its chord. To continue
    an interrupted command, repeat it; nothing runs twice. Exits with 4 if tasks can't be read because the store is
    damaged, with 5 if only some run again, and with 1 if none does.
    """
    if everything == is_chosen(given):
        raise click.UsageError("say what to run again: QUEUE, --id, --task or another option, or --all")
    ids, arguments = given["ids"], filters_of(given)
    with target.client() as client:
        total = count_of(client, arguments)
        done = _in_steps("running again", limit or total, lambda progress: client.retry_failures(
            into, limit=limit, progress=progress, **arguments
        ))  # fmt: skip
        if ids and not done.handled and not any(done.left.values()) and not done.full:
            raise _nothing(client, ids, arguments)
    if as_json:
        print_json({"target": into, **done.values})
    else:
        remaining = "".join(f"; {count:,} stayed ({_WHY_LEFT[reason]})" for reason, count in done.left.items())
        where = f" in queue {into!r}" if into else ""
        outcomes = {
            f"{counted(done.redriven, 'message')} available again": done.redriven,
            f"{counted(done.published, 'task')} published again": done.published,
        }
        say(f"{', '.join(text for text, count in outcomes.items() if count) or 'nothing runs again'}{where}{remaining}")
    _check_retried(done)
    check_ids(ids, done.handled + sum(done.left.values()), limit, "failures that match")


def _check_retried(done: FailuresRetried) -> None:
    """End with the exit code for the failures that did not run again, if there are any."""
    if done.damaged:
        raise CommandError(f"{counted(done.damaged, 'task')} can't run again: {done.damage}", DAMAGED)
    if done.full:
        raise CommandError(
            f"queue {done.full!r} is full or paused: the rest stays failed until it takes messages", NOT_NOW
        )
    if done.paused:
        raise CommandError("publishes to a queue are paused: after `queue resume`, the same command continues", NOT_NOW)
    if done.refused:
        reasons = ", ".join(f"{count:,} {_WHY_LEFT[name]}" for name, count in done.refused.items())
        code = NOT_NOW if done.handled or "waiting" in done.refused else REFUSED
        raise CommandError(f"{counted(sum(done.refused.values()), 'failure')} did not run again: {reasons}", code)


def _nothing(client: Any, ids: tuple[str, ...], asked: Any) -> CommandError:
    """Return the reason why no failure with these ids can be run again."""
    handled = client.list_failures(**asked | {"kinds": ["acknowledged"]}, handled=True, limit=1).items
    if not handled:
        return CommandError(
            f"nothing that failed has the id {', '.join(ids)}: '{next_command('failed list')}' shows all"
        )
    failure = handled[0]
    again = f" as message {failure.retried_as}" if failure.retried_as >= 0 else ""
    return CommandError(f"message {failure.message_id} was already {failure.handled}{again}")


def _in_steps(label: str, total: int, work: Callable[[Callable[[Any], object]], Any]) -> Any:
    """Do the work with a progress bar, and report the progress if it is interrupted."""
    from ..terminal.progress import bar

    came = 0
    with bar(label) as update:

        def progress(done: Any) -> None:
            nonlocal came
            came = done.handled
            update(came, total)

        try:
            return work(progress)
        except KeyboardInterrupt:
            note(f"at least {came:,} done; the same command continues with the rest")
            raise


# ---------------------------------------------------------------------- archive, delete
@click.command(cls=Command, epilog="Example: opendata-queue failed archive orders --older-than 7d")
@queue_argument
@where_option
@ids_option
@click.option("--older-than", type=LENGTH, help="only messages that failed at least this long ago: 90s, 12h, 30d")
@limit_option("how many at most; 0 (the default): all")
@call_options
def archive(
    queue: str, where: str, ids: tuple[int, ...], older_than: float | None, limit: int, target: Target, as_json: bool
) -> None:
    """Archive failed messages, all or some.

    They stay complete until they are deleted. `failed list --archived` shows them, and `failed retry --archived` makes
    them available again.
    """
    from ..terminal.progress import is_shown, watched

    with target.client() as client:

        def work() -> int:
            return client.archive_failed(queue, where=where, ids=ids or None, older_than=older_than, limit=limit)

        def progress() -> tuple[int, int]:
            return max(0, total - client.metrics(queue).failed), total

        total = client.metrics(queue).failed if is_shown() else 0
        archived = watched(f"archiving {queue}", work, progress)
    if as_json:
        print_json({"queue": queue, "archived": archived})
    else:
        say(f"{counted(archived, 'failed message')} of queue {queue!r} archived")
    check_ids(ids, archived, limit, "failed messages of the queue that match")


@click.command(cls=Command, epilog="Example: opendata-queue failed delete orders --id 17 --id 18")
@failure_options
@click.option("--all", "everything", is_flag=True, help="all in these queues, or in all queues")
@limit_option("how many at most; 0 (the default): all")
@yes_option
@call_options
def delete(everything: bool, limit: int, yes: bool, target: Target, as_json: bool, **given: Any) -> None:
    """Delete failed messages, and dismiss failed tasks.

    This can't be undone. The history still shows that they failed.
    """
    queues, ids = given["queues"], given["ids"]
    if everything == is_chosen({**given, "queues": ()}):
        raise click.UsageError("say what to delete: --id, --task, --until or another option, or --all")
    arguments = filters_of(given)
    with target.client() as client:
        total = count_of(client, arguments)
        where = f" of queue {', '.join(map(repr, queues))}" if queues else " of all queues"
        confirm(f"Delete {counted(min(total, limit or total), 'failure')}{where}?", yes)
        done = _in_steps("deleting", limit or total, lambda progress: client.dismiss_failures(
            limit=limit, progress=progress, **arguments
        ))  # fmt: skip
    if as_json:
        print_json(done.values)
    else:
        say(f"{counted(done.deleted, 'failed message')} deleted, {counted(done.dismissed, 'failure')} dismissed")
    check_ids(ids, done.handled, limit, "failures that match")
