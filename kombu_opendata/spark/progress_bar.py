"""A progress bar of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..staging import JobInfo


@contextmanager
def bar(rows: int, shown: bool) -> Iterator[Callable[[JobInfo], None]]:
    """A function that shows a job's progress, or does nothing without ``shown``.

    Args:
        rows: how many tasks the job has. A task in several queues counts once in each.
    """
    if not shown:
        yield lambda job: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("tasks", total=rows)

        def show(job: JobInfo) -> None:
            removed = sum(counts.removed for counts in job.queues.values())
            ended = job.done + job.failed + removed + job.unroutable + job.damaged
            what = f"tasks ({job.failed:,} failed)" if job.failed else "tasks"
            what += f"; {job.blocked.reason}" if job.blocked else ""
            total = max(rows, sum(counts.routed for counts in job.queues.values()) + job.unroutable + job.damaged)
            progress.update(task, completed=ended, total=total, description=what)

        yield show
