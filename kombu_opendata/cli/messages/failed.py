"""``failed``: what failed and was not handled yet: list, count, retry, archive, delete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from ...json_values import moment, plain
from ...readable_text import value_text
from ..exit_codes import CommandError, CommandGroup
from ..hints import next_command
from ..target import Target, look_options, queues_argument
from ..terminal.output import note, print_facts, print_json, print_json_line
from ..terminal.tables import Column, print_table
from .failure_changes import archive, delete, retry
from .failure_filters import failure_options, filters_of, split_ids
from .failure_lines import ARGUMENTS_LIMIT, as_document, hint, say_lines, task_arguments, what_was_raised

if TYPE_CHECKING:
    from ...protocol.messages.failure_messages import FailureInfo

_DIMENSIONS = ("task", "exception", "queue", "reason", "worker")
_COLUMNS: list[Column] = [
    ("id", True), ("queue", False), ("task", False), ("reason", False), ("exception", False), ("failed", False),
    ("worker", False), ("attempts", True), ("kind", False),
]  # fmt: skip
#: columns that are left out on a narrow terminal, the first one first
_SPARE = ("attempts", "worker", "kind", "reason", "queue")


@click.group("failed", cls=CommandGroup)
def failed_group() -> None:
    """What failed: list, count, show, retry, archive, delete.

    These are the messages in failed lists, and the tasks whose messages were acknowledged although they failed, until
    somebody runs them again or deletes them.
    """


# ---------------------------------------------------------------------- looking
class _By(click.ParamType):  # type: ignore[type-arg]
    """Names of dimensions, separated by commas."""

    name = "NAMES"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        names = tuple(name.strip() for name in str(value).split(","))
        for name in names:
            if name not in _DIMENSIONS:
                self.fail(f"{name!r} is not one of {', '.join(_DIMENSIONS)}", param, ctx)
        return names


@failed_group.command("list", epilog="Example: opendata-queue failed list --by task,exception")
@failure_options
@click.option(
    "--by", type=_By(), help="count them instead, by any of task, exception, queue, reason, worker: --by task,exception"
)
@click.option(
    "--order", type=click.Choice(["desc", "asc"]), default="desc", show_default=True, help="newest or oldest first"
)
@click.option(
    "--limit", "-n", type=int, metavar="N", default=20, show_default=True, help="entries per page, up to 1,000"
)
@click.option("--next", "next", metavar="CURSOR", help="the page after this cursor")
@click.option("--all", "everything", is_flag=True, help="all pages; with --json, one document a line")
@look_options
def list_failed(
    by: tuple[str, ...] | None, everything: bool, target: Target, as_json: bool, order: str, limit: int,
    next: str | None, **given: Any,
) -> None:  # fmt: skip
    """List what failed, newest first.

    Without QUEUE, in all queues. `failed show ID` shows one with its traceback, and `failed retry` with the same
    options runs them again.
    """
    window = {"since": given["since"], "until": given["until"]}
    asked = filters_of(given)
    with target.client(looks=True) as client:
        if by is not None:
            _show_groups(client.group_failures(by, **asked), by, as_json)
            return
        asked |= {"order": order, "limit": limit, "next": next}
        if everything:
            found = client.iter_failures(**asked | {"limit": 1000})
            if as_json:
                for one in found:
                    print_json_line(as_document(one))
            else:
                _print(found)
            return
        page = client.list_failures(**asked)
    if as_json:
        print_json({"items": [as_document(one) for one in page.items], "next": page.next, **window})
        return
    _print(page.items)
    if page.items:
        show_one = next_command("failed show", str(page.items[0].message_id))
        note(f"one with its traceback: '{show_one}'; `failed retry` with the same options (or --all) runs them again")
    times = "".join(f"--{name} {plain(at)} " for name, at in window.items() if at is not None)
    if page.next:
        note(f"next page: {times}--next {page.next}")


def _print(failures: Iterable[FailureInfo]) -> None:
    found = list(failures)
    # most have one attempt, and the exception needs the space
    shown = [
        at for at, (name, _) in enumerate(_COLUMNS) if name != "attempts" or any(one.attempts > 1 for one in found)
    ]
    rows = [[cells[at] for at in shown] for cells in map(_row, found)]
    print_table([_COLUMNS[at] for at in shown], rows, none="nothing failed", spare=_SPARE)


def _row(one: FailureInfo) -> tuple[Any, ...]:
    return (
        str(one.message_id), one.queue, one.task, one.reason, what_was_raised(one), moment(one.failed_at_ms),
        one.worker, one.attempts, one.kind,
    )  # fmt: skip


def _show_groups(found: Any, by: tuple[str, ...], as_json: bool) -> None:
    groups = [
        {
            **dict(zip(by, one.values, strict=True)), "count": one.count, "acknowledged": one.acknowledged,
            "first_at": moment(one.first_at_ms), "last_at": moment(one.last_at_ms),
        }
        for one in found.groups
    ]  # fmt: skip
    if as_json:
        print_json({"groups": groups, "complete": found.complete})
        return
    columns: list[Column] = [
        *((name, False) for name in by), ("count", True), ("acknowledged", True), ("first", False), ("last", False)
    ]  # fmt: skip
    rows = [tuple(group.values()) for group in groups]
    print_table(columns, rows, none="nothing failed", spare=("acknowledged", "first"))
    if not found.complete:
        note("there are more: only the newest 500,000 failures are counted, and the 1,000 largest groups shown")


@failed_group.command(epilog="Example: opendata-queue failed show 1234")
@click.argument("id", metavar="ID")
@look_options
def show(id: str, target: Target, as_json: bool) -> None:
    """Show a failure with its arguments and traceback.

    ID is a message id or Celery's id of a task. Values of arguments whose names contain "password", "token" or the like
    are masked. `task show` has all of its attempts and its result.
    """
    messages, tasks = split_ids([id])
    asked: Any = {"ids": messages or None, "task_ids": tasks or None, "order": "asc", "tracebacks": True}
    with target.client(looks=True) as client:
        kinds = ("failed", "acknowledged", "archived")
        found = [*client.list_failures(**asked, kinds=kinds).items, *client.list_failures(**asked, handled=True).items]
        given = {one.message_id: task_arguments(client, one) for one in found}
    if not found:
        every, task = next_command("failed list"), next_command("task show", id)
        raise CommandError(f"nothing that failed has the id {id}: '{every}' shows what failed, '{task}' any task")
    if as_json:
        print_json([as_document(one) | given[one.message_id] for one in found])
        return
    for one in found:
        arguments = {name: value_text(value, ARGUMENTS_LIMIT) for name, value in given[one.message_id].items()}
        print_facts({
            "message": str(one.message_id), "queue": one.queue, "task": one.task, "task id": one.task_id,
            **arguments,
            "kind": one.kind, "reason": one.reason, "failed": moment(one.failed_at_ms), "worker": one.worker,
            "attempts": one.attempts, "ran": f"{one.runtime_ms / 1000:.3f} s" if one.runtime_ms else "",
            "handled": _handled(one),
        })  # fmt: skip
        say_lines(one.traceback.rstrip() or what_was_raised(one, limit=0))
    if any(not one.handled for one in found):
        note(hint(id))


def _handled(one: FailureInfo) -> str:
    again = f" as message {one.retried_as}" if one.retried_as >= 0 else ""
    return f"{one.handled}{again}" if one.handled else "no"


@failed_group.command("count", epilog="Example: opendata-queue failed count orders")
@queues_argument
@look_options
def count_failed(queues: tuple[str, ...], target: Target, as_json: bool) -> None:
    """Count what failed, by queue.

    These are failed messages, acknowledged tasks that failed, and archived failed messages.
    Without QUEUE, of all queues that have any.
    """
    with target.client(looks=True) as client:
        metrics = {name: client.metrics(name) for name in queues} if queues else client.metrics_all()
        groups = client.group_failures(["queue"], queues=queues, kinds=["acknowledged"]).groups
    acknowledged = {group.values[0]: group.count for group in groups}
    found = {name: (one.failed, acknowledged.get(name, 0), one.archived_failed) for name, one in metrics.items()}
    found = {name: counts for name, counts in found.items() if queues or any(counts)}
    columns: list[Column] = [("queue", False), ("failed", True), ("acknowledged", True), ("archived", True)]
    if as_json:
        names = ("failed", "acknowledged", "archived_failed")
        print_json({name: dict(zip(names, counts, strict=True)) for name, counts in found.items()})
    else:
        print_table(columns, [(name, *counts) for name, counts in found.items()], none="nothing failed")


for _command in (retry, archive, delete):
    failed_group.add_command(_command)
