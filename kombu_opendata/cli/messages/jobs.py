"""Commands ``job``: jobs of Spark, their tasks, and the wait for their end."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ...client.job_calls import WAIT_PATIENCE_SECONDS, job_filter
from ...json_values import moment, unpacked
from ...readable_text import age, counted
from ..exit_codes import NOT_NOW, NOT_SUCCEEDED, CommandError, CommandGroup, confirm
from ..hints import next_command
from ..option_types import LENGTH, limit_option
from ..output import Reply, Table, local, note
from ..progress import bar
from ..target import Target, asks_always, changes, completion, reads, reads_at_target
from .failure_changes import incomplete, retried_text

if TYPE_CHECKING:
    from ...protocol.messages import JobInfo
    from ...queue_client import QueueClient

job_group = CommandGroup("job", help="Manage jobs of Spark: list, wait, cancel, retry and more.")


@completion
def _complete_jobs(client: QueueClient) -> list[str]:
    return [job.job_id for job in client.list_jobs(limit=1000).items]


job_argument = click.argument("job_id", metavar="JOB", shell_complete=_complete_jobs)


def _state(job: JobInfo) -> str:
    state = "cancelled" if job.cancelled_at_ms else "ended" if job.has_ended else job.state
    return f"{state}: {job.blocked.reason}" if job.blocked else state


def _left(job: JobInfo) -> str:
    seconds = job.seconds_left
    return "" if job.has_ended or seconds is None else age(seconds)


def _counts(job: JobInfo) -> Iterator[str]:
    """Yield the number of tasks in each state, without zeros."""
    for name, number in unpacked(job.tasks).items():
        if number:
            yield f"{number:,} {name.replace('_', ' ')}"


def _document(job: JobInfo) -> dict[str, Any]:
    document = {name: value for name, value in unpacked(job).items() if name not in ("added", "same")}
    return {**document, "has_ended": job.has_ended, "seconds_left": job.seconds_left}


_JOBS = Table(
    {
        "job": "job_id",
        "state": _state,
        "tasks#": "tasks.total",
        "ended#": "tasks.ended",
        "failed#": "tasks.failed",
        "running#": "tasks.running",
        "per s#": "rate",
        "left": _left,
        "committed": lambda job: moment(job.committed_at_ms),
    },
    none="no jobs",
    spare=("committed", "per s", "running", "left"),
)
_QUEUES = Table(
    {"queue": "", "waiting#": "", "done#": "", "failed#": "", "removed#": "", "routed#": ""},
    none="no task is in a queue",
    spare=("routed", "removed"),
)


@job_group.command("list", epilog="Example: opendata-queue job list")
@limit_option("how many at most", 100, low=1, high=1000)
@click.option("--after", default="", metavar="JOB", help="only jobs with ids after this one")
@reads
def list_jobs(client: QueueClient, limit: int, after: str) -> Reply:
    """List jobs, ordered by id.

    The broker remembers a job until a week after its last task has ended.
    """
    page = client.list_jobs(after, limit=limit)
    notes = [] if page.next is None else [f"next page: {next_command(f'job list --after={shlex.quote(page.next)}')}"]
    document = {"items": [_document(job) for job in page.items], "next": page.next}
    return Reply(document, _JOBS.of(page.items), notes=notes)


@job_group.command(epilog="Example: opendata-queue job show invoices-2026-11-21")
@job_argument
@reads
def show(client: QueueClient, job_id: str) -> Reply:
    """Show a job with the states of its tasks."""
    job = client.get_job(job_id)
    facts = {
        "job": job.job_id,
        "state": _state(job),
        "tasks": job.tasks.total,
        **{name.replace("_", " "): number for name, number in unpacked(job.tasks).items() if number},
        "rate": f"{job.rate:,.1f} tasks ended in a second, on average over the last minute",
        "left": _left(job),
        "routed": f"{job.routed:,} of {counted(job.rows, 'row')}",
        "blocked": str(job.blocked or ""),
        "rate limit": f"{job.rate_limit:g} tasks a second" if job.rate_limit else "",
        "committed": local(moment(job.committed_at_ms)),
        "cancelled": local(moment(job.cancelled_at_ms)),
        "ended": local(moment(job.settled_at_ms)),
        "first message": job.first_id,
    }
    queues = [{**unpacked(counts), "queue": name, "waiting": counts.waiting} for name, counts in job.queues.items()]
    return Reply(
        _document(job),
        {name: value for name, value in facts.items() if value != ""},
        "",
        _QUEUES.of(sorted(queues, key=lambda row: row["queue"])),
        notes=_hints(job),
    )


def _hints(job: JobInfo) -> Iterator[str]:
    if job.tasks.retryable:
        yield f"failed tasks: {next_command(f'failed list --where={shlex.quote(job_filter(job.job_id))}')}"


@job_group.command(epilog="Example: opendata-queue job wait invoices-2026-11-21 --timeout 2h")
@job_argument
@click.option("--timeout", type=LENGTH, help="how long at most, such as 2h; without it, there is no limit")
@reads_at_target
def wait(job_id: str, timeout: float | None, target: Target) -> Reply:
    """Wait until each task of a job has ended.

    Exits with 7 if some tasks did not succeed, and with 5 at the timeout. The wait outlasts a restart of the broker.
    """
    try:
        with (
            target.client(read_only=True, reconnect_timeout=WAIT_PATIENCE_SECONDS) as client,
            bar(f"job {job_id}") as update,
        ):
            job = client.wait_job(job_id, timeout, progress=lambda job: update(job.tasks.ended, job.tasks.total))
    except TimeoutError as exc:
        raise CommandError(str(exc), NOT_NOW) from exc
    except KeyboardInterrupt:
        note(f"the job continues: '{next_command('job wait', job_id)}' waits again")
        raise
    failed = job.tasks.failed
    text = f"{counted(failed, 'task')} of job {job_id!r} did not succeed"
    return Reply(
        _document(job),
        f"job {job_id!r} has ended: {', '.join(_counts(job)) or 'no tasks'}",
        notes=_hints(job),
        error=CommandError(text, NOT_SUCCEEDED) if failed else None,
    )


@job_group.command(epilog="Example: opendata-queue job cancel invoices-2026-11-21")
@job_argument
@asks_always
@changes
def cancel(client: QueueClient, job_id: str, yes: bool) -> Reply:
    """Cancel a job: remove its tasks that no worker has claimed.

    The other tasks continue. Those that return to their queue, and messages that retry them, are removed, too.
    """
    job = client.get_job(job_id)
    if job.has_ended:
        raise CommandError(f"job {job_id!r} has ended: there is nothing to cancel")
    confirm(f"Cancel job {job_id!r} and remove its waiting tasks, up to {job.tasks.waiting:,}?", yes)
    done = client.cancel_job(job_id)
    text = f"{counted(done.dropped, 'task')} removed; {done.running:,} continue, {done.ended:,} had ended"
    return Reply({"job_id": job_id, "dropped": done.dropped, "running": done.running, "ended": done.ended}, text)


@job_group.command(epilog="Example: opendata-queue job retry invoices-2026-11-21")
@job_argument
@changes
def retry(client: QueueClient, job_id: str) -> Reply:
    """Run the failed tasks of a job again, in the same job.

    To continue an interrupted command, repeat it; nothing runs twice. Exits with 4 if tasks can't be read because the
    store is damaged, with 5 if only some run again, and with 1 if none does.
    """
    done = client.retry_job(job_id)
    nothing = None if done.handled else CommandError(f"no failed task of job {job_id!r} runs again")
    return Reply({"job_id": job_id, **done.values}, retried_text(done), error=incomplete(done) or nothing)


@job_group.command(epilog="Example: opendata-queue job delete invoices-2026-11-21")
@job_argument
@asks_always
@changes
def delete(client: QueueClient, job_id: str, yes: bool) -> Reply:
    """Delete the record of a job whose tasks have ended.

    Its messages stay. A program that submits a job with this id then sends all of its tasks again.
    """
    confirm(f"Delete job {job_id!r}?", yes)
    client.delete_job(job_id)
    return Reply({"job_id": job_id}, f"job {job_id!r} deleted")
