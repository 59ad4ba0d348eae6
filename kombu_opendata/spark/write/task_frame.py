"""Frame to write: a column for each part of the tasks that differs from row to row, and the job's plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ...errors import RequestError
from ..arrow_schema import arrow_schema, without_void
from ..encode.plan import ColumnNames, JobPlan, Target
from .task_arguments import TaskArguments

#: limit for the tasks and queues for which the driver uses an app
MAX_TARGETS = 10_000
#: characters of a column's expression that errors show
_SOURCE_CHARACTERS = 80


def task_frame(df: DataFrame, given: TaskArguments, app_path: str) -> tuple[DataFrame, JobPlan]:
    """Return the frame to write and its plan, without templates.

    Raises:
        RequestError: there is no such column, or a constant can't be pickled.
    """
    frame = _Frame(df)
    single = {name: getattr(given, name) for name in ("task", "queue", "priority", "eta", "expires")}
    varying = {name: frame.add(name, value) for name, value in single.items() if isinstance(value, Column)}
    constant = {name: value for name, value in single.items() if value is not None and name not in varying}
    if given.task_id is not None:
        varying["task_id"] = frame.add("task_id", given.task_id)
    kwargs = given.kwargs or ()
    if given.args is None and given.kwargs is None:
        kwargs = [name for name in df.columns if name != given.task_id]
    named = kwargs if isinstance(kwargs, Mapping) else {name: name for name in kwargs}
    headers = given.headers or {}
    columns = ColumnNames(
        args=tuple(frame.add_argument(f"args[{at}]", value) for at, value in enumerate(given.args or ())),
        kwargs={key: frame.add_argument(f"kwargs[{key}]", value) for key, value in named.items()},
        constants=frame.constants,
        headers={
            key: frame.add(f"headers[{key}]", value) for key, value in headers.items() if isinstance(value, Column)
        },
        **varying,
    )
    task, queue = constant.pop("task", ""), constant.pop("queue", "")
    plan = JobPlan(columns, task, queue, {**given.options, **constant}, app_path=app_path, sources=frame.sources)
    if fixed := {key: value for key, value in headers.items() if key not in columns.headers}:
        plan.options["headers"] = fixed
    return frame.selected(), plan


class _Frame:
    """Builder of the frame to write, from its columns.

    Attributes:
        constants: arguments that are not columns, by name.
        sources: the caller's expression for each column, by its name.
    """

    def __init__(self, df: DataFrame) -> None:
        self._df = df
        self._columns: list[Column] = []
        self.constants: dict[str, Any] = {}
        self.sources: dict[str, str] = {}

    def add_argument(self, name: str, value: Any) -> str:
        """Add a column, or a constant; return its name."""
        if isinstance(value, (Column, str)):
            return self.add(name, value)
        try:
            cloudpickle.dumps(value)
        except Exception as exc:
            raise RequestError(f"{name} is {value!r:.200}, which can't be pickled: {exc}", option=name) from exc
        self.constants[name] = value
        return name

    def add(self, name: str, column: Column | str) -> str:
        """Add a column, given as such or by its name in the caller's frame; return its name in the new frame."""
        shown = re.fullmatch(r"Column<'(.*)'>", str(column), re.DOTALL)
        self.sources[name] = shown[1][:_SOURCE_CHARACTERS] if shown else str(column)
        if isinstance(column, str):
            if column not in self._df.columns:
                has = ", ".join(self._df.columns)
                raise RequestError(f"there is no column {column!r}: the frame has {has}", column=column)
            column = _named(column)
        self._columns.append(column.alias(name))
        return name

    def selected(self) -> DataFrame:
        """Return the columns, with types that Arrow supports.

        A frame needs a column even if the tasks have no arguments.
        """
        frame = self._df.select(*(self._columns or [F.lit(None).cast("boolean").alias("none")]))
        kinds = [(field.name, field.dataType, without_void(field.dataType)) for field in frame.schema.fields]
        changed = {name: _named(name).cast(new) for name, old, new in kinds if new != old}
        return frame.withColumns(changed) if changed else frame  # Spark Connect refuses an empty dict


def _named(name: str) -> Column:
    return F.col(f"`{name.replace('`', '``')}`")


def make_templates(frame: DataFrame, plan: JobPlan, app: Any) -> None:
    """Create the plan's templates on the driver, as far as their tasks and queues are known.

    Args:
        app: an app object, which executors don't have; it creates all templates. None if there is none.

    Raises:
        RequestError: a column's type, the task or an option can't be sent.
    """
    plan.check_columns(*arrow_schema(frame.schema))
    if plan.task and plan.columns.queue is None:
        plan.template((plan.task, plan.queue), app)
    elif app is not None:
        for target in _targets(frame, plan):
            plan.template(target, app)
    plan.closed = app is not None


def _targets(frame: DataFrame, plan: JobPlan) -> list[Target]:
    """Return the tasks and queues that the rows name."""
    columns = plan.columns
    names = [name for name in (columns.task, columns.queue) if name is not None]
    rows = frame.select(*map(_named, names)).distinct().limit(MAX_TARGETS + 1).collect()
    if len(rows) > MAX_TARGETS:
        raise RequestError(
            f"over {MAX_TARGETS} tasks and queues: give the app as module:attribute, so that the executors ask it",
            limit=MAX_TARGETS,
        )
    targets = []
    for row in rows:
        task = plan.task if columns.task is None else row[columns.task]
        queue = plan.queue if columns.queue is None else row[columns.queue]
        if task and (queue or columns.queue is None):  # otherwise the executor's error names the row
            targets.append((task, queue))
    return targets
