"""``submit_tasks``: a frame's rows as Celery tasks; the arguments are those of ``apply_async``, or columns."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ..errors import RequestError, StartError, from_wire
from ..staging import JobInfo
from .arrow_schema import arrow_schema, without_void
from .broker_access import BrokerAccess, access_of
from .encode.plan import Columns, Plan
from .result import SubmitResult
from .source import NAME, register
from .write.argument_checks import check_arguments, constant
from .write.task_writers import check_prefix
from .write.write_options import check_columns, new_job_id, pack_plan

#: tasks and queues that an app is asked about on the driver
MAX_TARGETS = 10_000
#: of a column's expression in errors
_SOURCE_CHARACTERS = 80

Args = Sequence[Any] | None
Kwargs = Mapping[str, Any] | Sequence[str] | None


def submit_tasks(
    df: DataFrame,
    task: str | Column,
    *,
    broker_url: str | None = None,
    app: Any = None,
    args: Args = None,
    kwargs: Kwargs = None,
    queue: str | Column | None = None,
    priority: int | Column | None = None,
    eta: Any = None,
    expires: Any = None,
    task_id: str | Column | None = None,
    headers: Mapping[str, Any] | None = None,
    job_id: str | None = None,
    transport_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> SubmitResult:
    """Send each row of a frame as a task. All tasks become visible at once, when this returns, or none does.

    A ``Column`` differs from row to row, anything else is the same for all rows.

    Args:
        df: the rows.
        task: the task's name.
        broker_url: the broker; or give ``app``.
        app: a Celery app: its routes, queues, serializer and the tasks' own options count. A text ``module:attribute``
            is imported by the executors, too; an app object is asked on the driver, which takes one more pass
            over the frame where ``task`` or ``queue`` is a column.
        args: the positional arguments: a column's name, a ``Column``, or a constant (a constant text is
            ``F.lit("text")``).
        kwargs: the keyword arguments: columns' names, or a mapping of keyword to what ``args`` may have. Constants are
            sent as ``apply_async`` would send them. Without ``args`` and ``kwargs`` every column is a keyword argument,
            but for the one that ``task_id`` names.
        queue: where to; without it Celery's routing decides.
        priority: 0 to 255, higher first. Where a column has null, the task's own.
        eta, expires: as for ``apply_async``, or a column of timestamps; null is at once, and never.
        task_id: a column, or its name. Without it ids follow from the job id, the partition and the row.
        headers: header → constant or ``Column``.
        job_id: the same id again adds nothing and returns the job as it is; random when not given.
        transport_options: as Celery's ``broker_transport_options``; with ``broker_url``.
        options: further options of ``apply_async``: ``countdown``, ``serializer``, ``compression``, ``exchange``,
            ``routing_key``, ``ignore_result``, ``link``, ….

    Raises:
        RequestError: an argument that can't be, a task that the app does not have, or a queue that exists with other
            arguments; nothing was sent.
        StartError: Spark's Python lacks this package.
        OpenDataError: the broker refuses the job, or is away for five minutes; nothing was sent.
        pyspark.errors.PySparkException: the job failed, and nothing was sent; the text names the row that was wrong.
    """
    spark = df.sparkSession
    times = {"eta": eta, "expires": expires}
    check_arguments(task, args, kwargs, queue, headers, priority, task_id, job_id, {**options, **times})
    access = access_of(broker_url, app, transport_options)
    known = _known_job(access, job_id)
    if known is not None:
        return SubmitResult(spark, access, known)
    frame, plan, asked = _prepare(df, task, app, args, kwargs, queue, priority, eta, expires, task_id, headers, options)
    _make_templates(frame, plan, asked)
    with access.connect() as broker:
        broker.check(plan.declared())
    job_id = job_id or new_job_id()
    register(spark)
    with tempfile.TemporaryDirectory(prefix="opendata-spark-") as folder:
        report = Path(folder) / "report.json"
        writer = frame.write.format(NAME).mode("append").option("broker_url", access.url).option("job_id", job_id)
        writer.option("plan", pack_plan(plan, access)).option("report", str(report))
        try:
            writer.save()
        except PySparkException as exc:
            _raise_refusal(report, str(exc))
            raise
        return _result(spark, access, job_id, report, generated=task_id is None)


def stream_tasks(df: DataFrame, task: str | Column, *, job_id: str | None = None, **arguments: Any) -> Any:
    """A ``DataStreamWriter`` that sends each row of a streaming frame as a task; set its checkpoint and start it.

    Each micro-batch is a job of its own, so a query that starts again from its checkpoint sends nothing twice.
    The frame's session becomes this thread's active one; to start the query in another thread, ``register`` it there.

    Args:
        df, task, arguments: as for :func:`submit_tasks`; ``app`` must be a text if ``task`` or ``queue`` is a column.
        job_id: what the jobs' ids begin with, before the query's id and the micro-batch's number.

    Raises:
        RequestError: an argument that can't be.
    """
    access = access_of(
        arguments.pop("broker_url", None), arguments.get("app"), arguments.pop("transport_options", None)
    )
    names = ("app", "args", "kwargs", "queue", "priority", "eta", "expires", "task_id", "headers")
    given = {name: arguments.pop(name, None) for name in names}
    times = {name: given[name] for name in ("eta", "expires")}
    looked_at = {name: given[name] for name in names if name != "app" and name not in times}
    check_arguments(task, job_id=job_id, options={**arguments, **times}, **looked_at)
    check_prefix(job_id or "")
    frame, plan, asked = _prepare(df, task, **given, options=arguments)
    if asked is not None and not (plan.task and plan.columns.queue is None):
        raise RequestError(
            "give the app as module:attribute, as which tasks and queues a stream will have is not known"
        )
    _make_templates(frame, plan, asked)
    with access.connect() as broker:
        broker.check(plan.declared())
    register(df.sparkSession)
    writer = frame.writeStream.format(NAME).option("broker_url", access.url).option("plan", pack_plan(plan, access))
    return writer if job_id is None else writer.option("job_id", job_id)


# ---------------------------------------------------------------------- the broker
def _known_job(access: BrokerAccess, job_id: str | None) -> JobInfo | None:
    """The job, if it was committed before. Without an id the broker is asked all the same whether it takes jobs, as
    Spark would bury its answer in a traceback.
    """
    with access.connect() as broker:
        if job_id is None:
            broker.staging.staging_target()
            return None
        job = broker.staging.job_status(job_id)
    return None if job.state == "unknown" else job


def _result(spark: Any, access: BrokerAccess, job_id: str, report: Path, *, generated: bool) -> SubmitResult:
    """What the commit said. Where its process was on another host, as with Spark Connect, what the broker says: it did
    not know the job before.
    """
    if not report.exists():
        job = _known_job(access, job_id)
        if job is None:
            raise RequestError(f"job {job_id} ended without a commit", job_id=job_id)
        return SubmitResult(spark, access, replace(job, added=True))
    said = json.loads(report.read_text())
    job = JobInfo(**{**said["job"], "queues": {}, "blocked": None})
    return SubmitResult(spark, access, job, said["partitions"] if generated and job.added else None)


def _raise_refusal(report: Path, text: str) -> None:
    """Raise what was wrong, if it is known: the broker refused the commit, or executors lack this package. Spark
    buries both in a traceback.
    """
    if "No module named 'kombu_opendata'" in text:
        raise StartError(
            "the executors' Python has no kombu_opendata: install kombu-opendata[spark] for it on each machine, or set "
            "PYSPARK_PYTHON to one that has it before the session is made"
        ) from None
    refused = json.loads(report.read_text()).get("refused") if report.exists() else None
    if refused is not None:
        raise from_wire(refused["code"], refused["text"], {}) from None


# ---------------------------------------------------------------------- the frame
def _prepare(
    df: DataFrame,
    task: str | Column,
    app: Any,
    args: Args,
    kwargs: Kwargs,
    queue: Any,
    priority: Any,
    eta: Any,
    expires: Any,
    task_id: Any,
    headers: Mapping[str, Any] | None,
    options: dict[str, Any],
) -> tuple[DataFrame, Plan, Any]:
    """The frame with one column for each thing that differs, the plan, and the app object that is to be asked."""
    frame = _Frame(df)
    single = {"task": task, "queue": queue, "priority": priority, "eta": eta, "expires": expires}
    varying = {name: frame.add(name, value) for name, value in single.items() if isinstance(value, Column)}
    constant = {name: value for name, value in single.items() if value is not None and name not in varying}
    if task_id is not None:
        varying["task_id"] = frame.add("task_id", task_id)
    if args is None and kwargs is None:
        kwargs = [name for name in df.columns if name != task_id]
    named = dict(kwargs) if isinstance(kwargs, Mapping) else {name: name for name in kwargs or ()}
    plan = Plan(
        Columns(
            args=tuple(frame.add_argument(f"args[{at}]", value) for at, value in enumerate(args or ())),
            kwargs={key: frame.add_argument(f"kwargs[{key}]", value) for key, value in named.items()},
            constants=frame.constants,
            headers={
                key: frame.add(f"headers[{key}]", value)
                for key, value in (headers or {}).items()
                if isinstance(value, Column)
            },
            **varying,
        ),
        task=constant.pop("task", ""),
        queue=constant.pop("queue", ""),
        options={**options, **constant},
        app_path=app if isinstance(app, str) else "",
        sources=frame.sources,
    )
    fixed = {key: value for key, value in (headers or {}).items() if not isinstance(value, Column)}
    if fixed:
        plan.options["headers"] = fixed
    return frame.selected(), plan, None if isinstance(app, str) else app


class _Frame:
    """Collects the columns of the frame that is written.

    Attributes:
        constants: arguments that are no columns, by name.
        sources: what the caller wrote for each column, by its name.
    """

    def __init__(self, df: DataFrame) -> None:
        self._df = df
        self._columns: list[Column] = []
        self.constants: dict[str, Any] = {}
        self.sources: dict[str, str] = {}

    def add_argument(self, name: str, value: Any) -> str:
        """Add a column, or a constant; returns its name."""
        if isinstance(value, (Column, str)):
            return self.add(name, value)
        self.constants[name] = constant(name, value)
        return name

    def add(self, name: str, column: Column | str) -> str:
        """Add a column, or the one of that name; returns its name in the frame."""
        shown = re.fullmatch(r"Column<'(.*)'>", str(column), re.DOTALL)
        self.sources[name] = shown[1][:_SOURCE_CHARACTERS] if shown else str(column)
        self._columns.append(_column(self._df, column).alias(name))
        return name

    def selected(self) -> DataFrame:
        """All of them, of types that Arrow has. A frame needs a column even if the tasks have no arguments."""
        frame = self._df.select(*(self._columns or [F.lit(None).cast("boolean").alias("none")]))
        kinds = [(field.name, field.dataType, without_void(field.dataType)) for field in frame.schema.fields]
        changed = {name: _named(name).cast(new) for name, old, new in kinds if new != old}
        return frame.withColumns(changed) if changed else frame  # Spark Connect refuses to change none


def _column(df: DataFrame, value: Column | str) -> Column:
    if isinstance(value, Column):
        return value
    if value not in df.columns:
        raise RequestError(f"there is no column {value!r}: the frame has {', '.join(df.columns)}", column=value)
    return _named(value)


def _named(name: str) -> Column:
    return F.col(f"`{name.replace('`', '``')}`")


def _make_templates(frame: DataFrame, plan: Plan, app: Any) -> None:
    """Ask Celery for what all rows share, and see that it can be sent.

    Raises:
        RequestError: a column's type, the task or an option can't be sent.
    """
    check_columns(plan, *arrow_schema(frame.schema))
    if plan.task and plan.columns.queue is None:
        targets = [(plan.task, plan.queue)]
    elif app is None:
        return
    else:
        targets = _targets(frame, plan)
    for target in targets:
        plan.template(target, app)
    plan.closed = app is not None


def _targets(frame: DataFrame, plan: Plan) -> list[tuple[str, str]]:
    """The tasks and queues that the rows name."""
    columns = plan.columns
    names = [name for name in (columns.task, columns.queue) if name is not None]
    rows = frame.select(*map(_named, names)).distinct().limit(MAX_TARGETS + 1).collect()
    if len(rows) > MAX_TARGETS:
        raise RequestError(
            f"over {MAX_TARGETS} tasks and queues: give the app as module:attribute, so that the executors ask it",
            limit=MAX_TARGETS,
        )
    found = []
    for row in rows:
        task = plan.task if columns.task is None else row[columns.task]
        queue = plan.queue if columns.queue is None else row[columns.queue]
        if task and (queue or columns.queue is None):  # else the executor says which row it is
            found.append((task, queue))
    return found
