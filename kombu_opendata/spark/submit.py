"""Functions ``submit_tasks`` and ``stream_tasks``: a frame's rows as Celery tasks."""

from __future__ import annotations

import logging
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import msgspec
from msgspec import structs
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame

from ..celery_integration.broker_access import BrokerAccess, access_of
from ..errors import RequestError, StartError, from_wire
from ..protocol.messages import JobInfo
from .encode.plan import JobPlan
from .option_text import bucket_options, check_choice
from .result import SubmitResult
from .source import NAME, job_description, register
from .write.completion import completion_plan
from .write.dry_run import DryRun, rehearsal
from .write.job_digest import check_same, digest_of
from .write.row_limits import small_batches, without_large_rows
from .write.task_arguments import (
    Args,
    Kwargs,
    TaskArguments,
    check_frame,
    job_settings,
    make_templates,
    task_frame,
    without_duplicates,
)
from .write.task_writers import CommitReport, check_prefix
from .write.write_options import pack_plan

log = logging.getLogger(__name__)


@overload
def submit_tasks(df: DataFrame, task: str | Column, *, dry_run: Literal[True], **arguments: Any) -> DryRun: ...


@overload
def submit_tasks(
    df: DataFrame, task: str | Column, *, dry_run: Literal[False] = False, **arguments: Any
) -> SubmitResult: ...


def submit_tasks(
    df: DataFrame, task: str | Column, *, broker_url: str | None = None, app: Any = None, args: Args = None,
    kwargs: Kwargs = None, queue: str | Column | None = None, priority: int | Column | None = None, eta: Any = None,
    expires: Any = None, task_id: str | Column | None = None, headers: Mapping[str, Any] | None = None,
    properties: Mapping[str, Any] | None = None, job_id: str | None = None,
    duplicates: Literal["error", "first"] = "error",
    if_exists: Literal["error_if_different", "return"] = "error_if_different",
    bad_rows: Literal["fail", "collect"] = "fail", rate_limit: float | None = None, on_complete: Any = None,
    dry_run: bool = False, transport_options: Mapping[str, Any] | None = None,
    bucket: Mapping[str, str] | None = None, **options: Any,
) -> SubmitResult | DryRun:  # fmt: skip
    """Send each row of a frame as a task. All tasks become visible together when the call returns, or none does.

    A ``Column`` differs from row to row; other values are the same for all rows.

    Args:
        df, task: the rows, and the task's name.
        broker_url, transport_options: the broker and Celery's ``broker_transport_options``, if no app is given.
        app: the Celery app that names the broker; its routes, queues, serializer and task options apply. Pass it as
            text, ``module:attribute``, if executors can import it. With an app object the driver needs one more pass
            over the frame where ``task`` or ``queue`` is a column.
        args: positional arguments: columns' names, ``Column``s, or constants (a constant text is ``F.lit("text")``).
        kwargs: keyword arguments: columns' names, or a mapping of keywords to such values as in ``args``. Without
            ``args`` and ``kwargs``, every column except ``task_id`` is a keyword argument.
        queue: the queue; by default Celery's routing decides.
        priority: 0 to 255, higher first. The task's priority applies where a column has null.
        eta, expires: as for ``apply_async``, or a column of timestamps; null means immediately, or never.
        task_id: a column, or its name. By default ids are derived from the job id, the partition and the row.
        headers: names of headers and their constants or ``Column``s.
        properties: AMQP properties, such as ``reply_to`` and ``app_id``, which are the same for all rows.
        job_id: random by default. If a job with this id was committed before, nothing is added, and it is returned,
            provided that it has this task, queue, number of rows, and these arguments and options other than times.
        if_exists: a different job with this id is an error, or is returned (``return``) without reading the frame.
        duplicates: with ``task_id``, an id of several rows is an error, which needs one more pass over the frame, or
            one of these rows is sent (``first``).
        bad_rows: a row that can't be sent fails the job, or is left out (``collect``):
            :meth:`.SubmitResult.bad_rows` has all such rows with the reasons.
        rate_limit: the number of tasks that the broker adds to queues in a second.
        on_complete: a task's name or signature (``task.s(…)``), as JSON or MessagePack. The broker sends it once, when
            all tasks of the job have ended, with the keyword argument ``job``: ``job_id``, and ``tasks`` by state.
        dry_run: send nothing, and return a :class:`.DryRun` after one pass over the frame.
        bucket: settings of the store's bucket for the executors, as in :func:`.read_table`.
        options: further options of ``apply_async``, those of :data:`.task_arguments.APPLY_OPTIONS`.

    Raises:
        RequestError: an argument, the task, or a queue with other arguments is refused. Nothing was sent.
        StartError: Spark's Python lacks this package.
        OpenDataError: the broker refuses the job, or is unreachable for five minutes. Nothing was sent.
        pyspark.errors.PySparkException: the job failed; the text names the invalid row. Nothing was sent.
    """
    arguments = TaskArguments(task, args, kwargs, queue, priority, eta, expires, task_id, headers, properties, options)
    arguments.check(job_id)
    check_frame(df, streams=False)
    check_choice("duplicates", duplicates, ("error", "first"))
    check_choice("dry_run", dry_run, (True, False))
    settings = job_settings(bad_rows=bad_rows, if_exists=if_exists, rate_limit=rate_limit)
    bucket_options(bucket)
    access = replace(access_of(broker_url, app, transport_options), bucket=dict(bucket or {}))
    call = _Call(arguments, settings, app, access)
    return (call.rehearse if dry_run else call.submit)(df, job_id, duplicates, on_complete)


def stream_tasks(df: DataFrame, task: str | Column, *, job_id: str | None = None, **arguments: Any) -> Any:
    """Return a ``DataStreamWriter`` that sends each row of a streaming frame as a task.

    Set its checkpoint and start it. Each micro-batch is a separate job, so a query that restarts from its checkpoint
    sends nothing twice. The frame's session becomes this thread's active one; to start the query in another thread,
    ``register`` the session there.

    Args:
        df: the streaming frame.
        task: as for :func:`submit_tasks`.
        arguments: as for :func:`submit_tasks`, where each micro-batch has its own ``rate_limit`` and ``on_complete``.
            ``app`` must be a text if ``task`` or ``queue`` is a column.
        job_id: a prefix of the jobs' ids, in front of the query's id and the micro-batch's number.

    Raises:
        RequestError: an argument is refused.
    """
    app = arguments.pop("app", None)
    bucket = bucket_options(arguments.pop("bucket", None))
    access = access_of(arguments.pop("broker_url", None), app, arguments.pop("transport_options", None))
    on_complete = arguments.pop("on_complete", None)
    if of_frames := sorted({"dry_run", "duplicates", "if_exists"} & arguments.keys()):
        raise RequestError(f"{', '.join(of_frames)} can't be given for a stream: leave it out", option=of_frames[0])
    settings = job_settings(**{name: arguments.pop(name) for name in ("bad_rows", "rate_limit") if name in arguments})
    names = [field.name for field in fields(TaskArguments) if field.name in arguments and field.name != "options"]
    task_arguments = TaskArguments(task, **{name: arguments.pop(name) for name in names}, options=arguments)
    task_arguments.check(job_id)
    check_frame(df, streams=True)
    check_prefix(job_id or "")
    if task_arguments.is_routed_by_row and not isinstance(app, (str, type(None))):
        raise RequestError("give the app as module:attribute, because a stream's tasks and queues are not known now")
    call = _Call(task_arguments, settings, app, access)
    frame, plan = call.plan(df, on_complete)
    plan.digest = ""  # a micro-batch that is written again is that of the checkpoint
    frame = call.check(frame, plan)
    register(df.sparkSession)
    writer = frame.writeStream.format(NAME).option("broker_url", access.url).option("plan", pack_plan(plan, access))
    writer = writer.options(**bucket)
    return writer if job_id is None else writer.option("job_id", job_id)


class _Call(NamedTuple):
    """Validated arguments of a call."""

    arguments: TaskArguments
    settings: dict[str, Any]
    app: Any
    access: BrokerAccess

    def plan(self, df: DataFrame, on_complete: Any) -> tuple[DataFrame, JobPlan]:
        """Return the frame to write and its plan, without templates."""
        app, app_path = (None, self.app) if isinstance(self.app, str) else (self.app, "")
        frame, plan = task_frame(df, self.arguments, app_path)
        plan = replace(plan, on_complete=completion_plan(on_complete, app, app_path), **self.settings)
        plan.digest = digest_of(plan)
        return frame, plan

    def check(self, frame: DataFrame, plan: JobPlan) -> DataFrame:
        """Make the templates, and all checks that the driver can make; return the frame with those that Spark makes."""
        make_templates(frame, plan, None if isinstance(self.app, str) else self.app)
        with self.access.connect() as broker:
            broker.check(plan.declared())
            limit = broker.staging.staging_target().max_message_bytes
        return frame if plan.collects_bad_rows else without_large_rows(frame, limit)

    def check_known(self, known: JobInfo, frame: DataFrame, plan: JobPlan, duplicates: str) -> None:
        """Raise PreconditionFailed if a job that was committed with the same id is another one."""
        check_same(known, plan.digest)
        if self.arguments.task_id is not None and duplicates == "first":
            frame = without_duplicates(frame, duplicates)
        check_same(known, plan.digest, frame.count())

    def rehearse(self, df: DataFrame, job_id: str | None, duplicates: str, on_complete: Any) -> DryRun:
        """Make all checks of :meth:`submit`, and encode the first rows."""
        known = self.access.committed_job(job_id)
        frame, plan = self.plan(df, on_complete)
        self.check(frame, plan)
        checks = ["the task accepts these arguments, and the queues have these settings"]
        if known is None:
            checks.append("the broker has no job of this id, so the tasks would be sent")
        else:
            if not self.settings["returns_existing"]:
                self.check_known(known, frame, plan, duplicates)
            checks.append(f"job {known.job_id!r} was committed before, so nothing would be sent")
        if self.arguments.task_id is not None:
            frame = without_duplicates(frame, duplicates)
            checks.append("each task id is sent once")
        register(df.sparkSession)
        return rehearsal(frame, plan, self.access.staging_target(), job_id, checks)

    def submit(self, df: DataFrame, job_id: str | None, duplicates: str, on_complete: Any) -> SubmitResult:
        spark, access, has_own_ids = df.sparkSession, self.access, self.arguments.task_id is not None
        known = access.committed_job(job_id)
        if known is not None and self.settings["returns_existing"]:
            return _existing(spark, access, known)
        frame, plan = self.plan(df, on_complete)
        if known is not None:
            self.check_known(known, frame, plan, duplicates)
            return _existing(spark, access, known)
        frame = self.check(frame, plan)
        if has_own_ids:
            frame = without_duplicates(frame, duplicates)
        job_id = job_id or str(uuid.uuid4())
        register(spark)
        with tempfile.TemporaryDirectory(prefix="opendata-spark-") as folder:
            report_file = Path(folder) / "report.json"  # absent if another host commits, as with Spark Connect
            writer = frame.write.format(NAME).mode("append").option("broker_url", access.url).option("job_id", job_id)
            writer.option("plan", pack_plan(plan, access)).option("report", str(report_file))
            writer.options(**bucket_options(access.bucket))
            what = f"submit {plan.task or 'tasks'}" + (f" to {plan.queue}" if plan.queue else "")
            try:
                with job_description(spark, what), small_batches(spark):
                    writer.save()
            except PySparkException as exc:
                if "No module named 'kombu_opendata'" in str(exc):
                    raise StartError(
                        "the executors' Python has no kombu_opendata: install kombu-opendata[spark] for it on each "
                        "machine, or set PYSPARK_PYTHON to one that has it before the session is made"
                    ) from None
                if refused := _read_report(report_file).refused:
                    raise from_wire(*refused, {}) from None
                known = access.committed_job(job_id)  # another driver may have committed it since
                if known is not None and not self.settings["returns_existing"]:
                    check_same(known, plan.digest)
                raise
            report = _read_report(report_file)
        if report.bad_rows:
            log.warning("%d rows of job %r can't be sent: see bad_rows() of the result", report.bad_rows, job_id)
        job = report.job or access.committed_job(job_id)
        if job is None:
            raise RequestError(f"job {job_id} ended without a commit", job_id=job_id)
        if report.job is None:
            job = structs.replace(job, added=True)
        ids_follow = report.job is not None and job.added and not report.bad_rows and not has_own_ids
        return SubmitResult(spark, access, job, report.partitions if ids_follow else None)


def _existing(spark: Any, access: BrokerAccess, job: JobInfo) -> SubmitResult:
    log.warning("job %r was committed before, with %d tasks: nothing is sent", job.job_id, job.rows)
    return SubmitResult(spark, access, job)


def _read_report(file: Path) -> CommitReport:
    return msgspec.json.decode(file.read_bytes(), type=CommitReport) if file.exists() else CommitReport()
