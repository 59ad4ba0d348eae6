"""Commands ``failed``: list, count, retry, archive and delete failures that are not handled yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ...json_values import moment
from ..exit_codes import CommandError, CommandGroup
from ..hints import next_command
from ..option_types import ReadBy, page_options
from ..output import Reply, Table, page_reply
from ..target import queues_argument, reads
from .failure_changes import archive, delete, retry
from .failure_options import (
    argument_texts,
    exception_text,
    failure_document,
    failure_filters,
    failure_options,
    retry_hint,
    split_ids,
    task_arguments,
)

if TYPE_CHECKING:
    from ...protocol.messages import FailureInfo
    from ...queue_client import QueueClient

_DIMENSIONS = ("task", "exception", "queue", "reason", "worker")
_FAILURES = Table(
    {
        "id#": lambda failure: str(failure.message_id),
        "queue": "", "task": "", "reason": "", "exception": exception_text,
        "failed": lambda failure: moment(failure.failed_at_ms),
        "worker": "",
        "attempts#": lambda failure: failure.attempts if failure.attempts > 1 else "",
        "kind": "",
    },
    none="nothing failed",
    spare=("attempts", "worker", "kind", "reason", "queue"),
    rare=("attempts",),  # most failures have one, and the exception needs the space
)  # fmt: skip


@click.group("failed", cls=CommandGroup)
def failed_group() -> None:
    """List, count, show, retry, archive and delete failures.

    Failures are failed messages, and failed tasks whose messages were acknowledged, until they are retried, archived or
    deleted.
    """


def _names(value: str) -> tuple[str, ...]:
    """Return the names of dimensions, which are separated by commas."""
    names = tuple(name.strip() for name in value.split(","))
    for name in names:
        if name not in _DIMENSIONS:
            raise ValueError(f"{name!r} is not one of {', '.join(_DIMENSIONS)}")
    return names


@failed_group.command("list", epilog="Example: opendata-queue failed list --by task,exception")
@failure_options
@failure_filters
@click.option(
    "--by",
    type=ReadBy("NAMES", _names),
    help="count them by any of task, exception, queue, reason, worker: --by task,queue",
)
@page_options
@reads
def list_failed(
    client: QueueClient, by: tuple[str, ...] | None, everything: bool, filters: dict[str, Any], **page: Any
) -> Reply:
    """List failures, newest first.

    Without QUEUE, of all queues. `failed show ID` shows a failure with its traceback, and `failed retry` with the same
    options retries the failures that match.
    """
    if by is not None:
        return _groups(client.group_failures(by, **filters), by)
    return page_reply(
        client.list_failures,
        client.iter_failures,
        _FAILURES,
        failure_document,
        {**filters, **page},
        everything=everything,
        hint=_hint,
    )


def _hint(failure: FailureInfo) -> str:
    text = "`failed retry` with the same options (or --all) runs them again"
    return f"'{next_command('failed show', str(failure.message_id))}' shows a traceback; {text}"


def _groups(answer: Any, by: tuple[str, ...]) -> Reply:
    groups = [
        {
            **dict(zip(by, group.values, strict=True)), "count": group.count, "acknowledged": group.acknowledged,
            "first_at": moment(group.first_at_ms), "last_at": moment(group.last_at_ms),
        }
        for group in answer.groups
    ]  # fmt: skip
    columns = {**dict.fromkeys(by, ""), "count#": "", "acknowledged#": "", "first": "first_at", "last": "last_at"}
    more = "there are more: only the newest 500,000 failures are counted, and the 1,000 largest groups shown"
    return Reply(
        {"groups": groups, "complete": answer.complete},
        Table(columns, none="nothing failed", spare=("acknowledged", "first"), rows=groups),
        notes=[] if answer.complete else [more],
    )


@failed_group.command(epilog="Example: opendata-queue failed show 1234")
@click.argument("id", metavar="ID")
@reads
def show(client: QueueClient, id: str) -> Reply:
    """Show a failure with its arguments and traceback.

    ID is a message id or Celery's id of a task. Values of arguments whose names contain "password", "token" or the like
    are masked. `task show` shows all of its attempts and its result.
    """
    messages, tasks = split_ids([id])
    query: Any = {"ids": messages or None, "task_ids": tasks or None, "order": "asc", "tracebacks": True}
    failures = [
        *client.list_failures(**query, kinds=("failed", "acknowledged", "archived")).items,
        *client.list_failures(**query, handled=True).items,
    ]
    arguments = [task_arguments(client, failure) for failure in failures]
    if not failures:
        list_command, task_command = next_command("failed list"), next_command("task show", id)
        raise CommandError(
            f"nothing that failed has the id {id}: '{list_command}' shows what failed, '{task_command}' any task"
        )
    documents = [failure_document(failure) | values for failure, values in zip(failures, arguments, strict=True)]
    parts: list[Any] = []
    for failure, values in zip(failures, arguments, strict=True):
        parts.append(_facts(failure, values))
        parts += (failure.traceback.rstrip() or exception_text(failure, limit=0)).split("\n")
    is_unhandled = any(not failure.handled for failure in failures)
    return Reply(documents, *parts, notes=[retry_hint(id)] if is_unhandled else [])


def _facts(failure: FailureInfo, arguments: dict[str, Any]) -> dict[str, Any]:
    again = f" as message {failure.retried_as}" if failure.retried_as >= 0 else ""
    return {
        "message": str(failure.message_id), "queue": failure.queue, "task": failure.task, "task id": failure.task_id,
        **argument_texts(arguments),
        "kind": failure.kind, "reason": failure.reason, "failed": moment(failure.failed_at_ms),
        "worker": failure.worker, "attempts": failure.attempts,
        "ran": f"{failure.runtime_ms / 1000:.3f} s" if failure.runtime_ms else "",
        "handled": f"{failure.handled}{again}" if failure.handled else "no",
    }  # fmt: skip


@failed_group.command("count", epilog="Example: opendata-queue failed count orders")
@queues_argument
@reads
def count_failed(client: QueueClient, queues: tuple[str, ...]) -> Reply:
    """Count failures by queue.

    These are failed messages, acknowledged tasks that failed, and archived failed messages. Without QUEUE, of all
    queues that have any.
    """
    metrics = {name: client.metrics(name) for name in queues} if queues else client.metrics_all()
    groups = client.group_failures(["queue"], queues=queues, kinds=["acknowledged"]).groups
    acknowledged = {group.values[0]: group.count for group in groups}
    rows = [
        {"queue": name, "failed": queue.failed, "acknowledged": acknowledged.get(name, 0),
         "archived": queue.archived_failed}
        for name, queue in metrics.items()
        if queues or queue.failed or queue.archived_failed or name in acknowledged
    ]  # fmt: skip
    names = {"failed": "failed", "acknowledged": "acknowledged", "archived_failed": "archived"}
    document = {row["queue"]: {name: row[label] for name, label in names.items()} for row in rows}
    columns = {"queue": "", "failed#": "", "acknowledged#": "", "archived#": ""}
    return Reply(document, Table(columns, none="nothing failed", rows=rows))


for _command in (retry, archive, delete):
    failed_group.add_command(_command)
