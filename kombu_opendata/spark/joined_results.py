"""Function ``map_tasks``: a frame's rows, each with the result of its task."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ..celery_integration.backend import OpenDataBackend
from ..celery_integration.broker_access import load_app
from ..errors import RequestError
from .option_text import check_column
from .submit import submit_tasks
from .write.row_limits import named_column
from .write.task_arguments import TaskArguments, check_frame

_ID = "__task_id"
_RESULT = "result"


def map_tasks(
    df: DataFrame,
    task: str | Column,
    *,
    schema: Any = None,
    timeout: float | None = None,
    progress: bool = False,
    app: Any = None,
    task_id: str | Column | None = None,
    job_id: str | None = None,
    **arguments: Any,
) -> DataFrame:
    """Send each row as a task, wait for all tasks, and return the rows with a column ``result``.

    The column is a struct with the columns of :meth:`.SubmitResult.results`. It is null for a row that was not sent.

    The ids of the tasks are a column of the frame, so rows and results stay together if the frame is computed again.
    Without ``task_id`` the ids are random, and the frame is stored on the executors (``localCheckpoint``): if they are
    lost, reading the result is an error. The results are read each time that the returned frame is computed.

    Args:
        df, task, app, arguments: as in ``submit_tasks``. If the app has another result backend, the results are read
            from there.
        schema: the type of the return values, as in :meth:`.SubmitResult.results`.
        timeout: seconds to wait for the tasks; None means no limit.
        progress: show a progress bar.
        task_id: a column with ids that are the same whenever the frame is computed, or its name.
        job_id: needs ``task_id``. A repeated call returns the results of the job.

    Raises:
        RequestError: an argument is refused, as in ``submit_tasks``, or the frame has a column ``result``.
        TimeoutError: some tasks have not ended.
    """
    check_frame(df, streams=False)
    if "dry_run" in arguments:
        raise RequestError("dry_run can't be given to map_tasks: call submit_tasks", option="dry_run")
    if _RESULT in map(str.lower, df.columns):
        raise RequestError(f"the frame has a column {_RESULT!r}, as the returned frame has: rename it", column=_RESULT)
    TaskArguments(task, task_id=task_id).check(job_id)
    if isinstance(task_id, str):
        check_column(task_id, df.columns)
    if task_id is None and job_id is not None:
        text = "job_id is given without task_id: name a column of ids, so that a repeated call finds the results"
        raise RequestError(text, option="task_id")
    if arguments.get("args") is None and arguments.get("kwargs") is None:
        arguments["kwargs"] = [name for name in df.columns if name != task_id]
    if task_id is None:
        rows = df.withColumn(_ID, F.expr("uuid()")).localCheckpoint()
    else:
        rows = df.withColumn(_ID, named_column(task_id) if isinstance(task_id, str) else task_id)
    job = submit_tasks(rows, task, app=app, task_id=_ID, job_id=job_id, **arguments)
    job.wait(timeout, progress=progress)
    backend = load_app(app).backend if isinstance(app, str) else getattr(app, "backend", None)
    elsewhere = None if backend is None or isinstance(backend, OpenDataBackend) else app
    results = job.results(schema, app=elsewhere).selectExpr(f"task_id {_ID}", f"struct(*) {_RESULT}")
    return rows.join(results, _ID, "left").drop(_ID)
