"""Commands ``failed``: list, count, retry, archive and delete failures that are not handled yet."""

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
    """List, count, show, retry, archive and delete failures.

    These are the messages in failed lists, and the tasks whose messages were acknowledged although they failed, until
    they are run again or deleted.
    """


# ---------------------------------------------------------------------- list, show, count
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
    """List failures, newest first.

    Without QUEUE, of all queues. `failed show ID` shows a failure with its traceback, and `failed retry` with the same
    options retries the failures that match.
    """
    window = {"since": given["since"], "until": given["until"]}
    arguments = filters_of(given)
    with target.client(looks=True) as client:
        if by is not None:
            _show_groups(client.group_failures(by, **arguments), by, as_json)
            return
        arguments |= {"order": order, "limit": limit, "next": next}
        if everything:
            failures = client.iter_failures(**arguments | {"limit": 1000})
            if as_json:
                for failure in failures:
                    print_json_line(as_document(failure))
            else:
                _print(failures)
            return
        page = client.list_failures(**arguments)
    if as_json:
        print_json({"items": [as_document(failure) for failure in page.items], "next": page.next, **window})
        return
    _print(page.items)
    if page.items:
        show_command = next_command("failed show", str(page.items[0].message_id))
        note(
            f"one with its traceback: '{show_command}'; `failed retry` with the same options (or --all) runs them again"
        )
    times = "".join(f"--{name} {plain(at)} " for name, at in window.items() if at is not None)
    if page.next:
        note(f"next page: {times}--next {page.next}")


def _print(failures: Iterable[FailureInfo]) -> None:
    failure_list = list(failures)
    # most failures have one attempt, and the exception needs the space
    positions = [
        at
        for at, (name, _) in enumerate(_COLUMNS)
        if name != "attempts" or any(failure.attempts > 1 for failure in failure_list)
    ]
    rows = [[cells[at] for at in positions] for cells in map(_row, failure_list)]
    print_table([_COLUMNS[at] for at in positions], rows, none="nothing failed", spare=_SPARE)


def _row(one: FailureInfo) -> tuple[Any, ...]:
    return (
        str(one.message_id), one.queue, one.task, one.reason, what_was_raised(one), moment(one.failed_at_ms),
        one.worker, one.attempts, one.kind,
    )  # fmt: skip


def _show_groups(found: Any, by: tuple[str, ...], as_json: bool) -> None:
    groups = [
        {
            **dict(zip(by, entry.values, strict=True)), "count": entry.count, "acknowledged": entry.acknowledged,
            "first_at": moment(entry.first_at_ms), "last_at": moment(entry.last_at_ms),
        }
        for entry in found.groups
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
    are masked. `task show` shows all of its attempts and its result.
    """
    messages, tasks = split_ids([id])
    query: Any = {"ids": messages or None, "task_ids": tasks or None, "order": "asc", "tracebacks": True}
    with target.client(looks=True) as client:
        kinds = ("failed", "acknowledged", "archived")
        failures = [
            *client.list_failures(**query, kinds=kinds).items,
            *client.list_failures(**query, handled=True).items,
        ]
        arguments_by_id = {entry.message_id: task_arguments(client, entry) for entry in failures}
    if not failures:
        list_command, task_command = next_command("failed list"), next_command("task show", id)
        raise CommandError(
            f"nothing that failed has the id {id}: '{list_command}' shows what failed, '{task_command}' any task"
        )
    if as_json:
        print_json([as_document(entry) | arguments_by_id[entry.message_id] for entry in failures])
        return
    for entry in failures:
        arguments = {
            name: value_text(value, ARGUMENTS_LIMIT) for name, value in arguments_by_id[entry.message_id].items()
        }
        print_facts({
            "message": str(entry.message_id), "queue": entry.queue, "task": entry.task, "task id": entry.task_id,
            **arguments,
            "kind": entry.kind, "reason": entry.reason, "failed": moment(entry.failed_at_ms), "worker": entry.worker,
            "attempts": entry.attempts, "ran": f"{entry.runtime_ms / 1000:.3f} s" if entry.runtime_ms else "",
            "handled": _handled(entry),
        })  # fmt: skip
        say_lines(entry.traceback.rstrip() or what_was_raised(entry, limit=0))
    if any(not entry.handled for entry in failures):
        note(hint(id))


def _handled(one: FailureInfo) -> str:
    again = f" as message {one.retried_as}" if one.retried_as >= 0 else ""
    return f"{one.handled}{again}" if one.handled else "no"


@failed_group.command("count", epilog="Example: opendata-queue failed count orders")
@queues_argument
@look_options
def count_failed(queues: tuple[str, ...], target: Target, as_json: bool) -> None:
    """Count failures by queue.

    These are failed messages, acknowledged tasks that failed, and archived failed messages. Without QUEUE, of all
    queues that have any.
    """
    with target.client(looks=True) as client:
        metrics = {name: client.metrics(name) for name in queues} if queues else client.metrics_all()
        groups = client.group_failures(["queue"], queues=queues, kinds=["acknowledged"]).groups
    acknowledged = {group.values[0]: group.count for group in groups}
    counts_by_queue = {
        name: (figures.failed, acknowledged.get(name, 0), figures.archived_failed) for name, figures in metrics.items()
    }
    counts_by_queue = {name: counts for name, counts in counts_by_queue.items() if queues or any(counts)}
    columns: list[Column] = [("queue", False), ("failed", True), ("acknowledged", True), ("archived", True)]
    if as_json:
        names = ("failed", "acknowledged", "archived_failed")
        print_json({name: dict(zip(names, counts, strict=True)) for name, counts in counts_by_queue.items()})
    else:
        print_table(columns, [(name, *counts) for name, counts in counts_by_queue.items()], none="nothing failed")


for _command in (retry, archive, delete):
    failed_group.add_command(_command)
