"""Arguments of ``submit_tasks`` and ``stream_tasks`` about tasks, validated before Spark and Celery use them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from numbers import Real
from types import NoneType
from typing import Any

import cloudpickle
import pyarrow as pa
from kombu.utils.functional import maybe_list
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ...errors import InvalidMessage, RequestError
from ...protocol.envelope import SPARK_JOB, SPARK_MESSAGE
from ...protocol.message_properties import priority_of
from ...staging.batch_block import MAX_HEADERS
from ..arrow_schema import arrow_schema, without_void
from ..encode.plan import ColumnNames, JobPlan, Target
from ..encode.row_encoder import RowEncoder
from ..option_text import check_choice, check_column, check_option, did_you_mean, nearest
from .row_limits import named_column

Args = Sequence[Any] | None
Kwargs = Mapping[str, Any] | Sequence[str] | None

#: arguments of ``submit_tasks`` that are not options of ``apply_async``
_ARGUMENTS = (
    "app", "bad_rows", "broker_url", "dry_run", "duplicates", "if_exists", "job_id", "on_complete", "properties",
    "rate_limit", "task", "transport_options",
)  # fmt: skip
#: arguments that are such options, but may differ from row to row
_COLUMNS = ("args", "kwargs", "task_id")
#: options of ``apply_async`` that a message can have
APPLY_OPTIONS = frozenset((
    "argsrepr", "chain", "chord", "compression", "countdown", "declare", "delivery_mode", "eta", "exchange",
    "exchange_type", "expires", "group_id", "group_index", "headers", "ignore_result", "kwargsrepr", "link",
    "link_error", "origin", "parent_id", "priority", "queue", "retries", "root_id", "routing_key",
    "serializer", "shadow", "soft_time_limit", "stamped_headers", "time_limit",
))  # fmt: skip
#: properties of AMQP messages, which are given by the argument ``properties``, and the types of their values
_PROPERTIES: dict[str, tuple[type, ...]] = {
    "app_id": (str,), "cluster_id": (str,), "correlation_id": (str,), "expiration": (Real,), "message_id": (str,),
    "reply_to": (str,), "timestamp": (Real, datetime), "type": (str,), "user_id": (str,),
}  # fmt: skip
_TIMES = ("eta", "expires")
#: headers that identify a task
_OWN_HEADERS = frozenset(("id", "task", SPARK_JOB, SPARK_MESSAGE))
#: options that are texts
_TEXTS = (
    "argsrepr", "compression", "exchange_type", "group_id", "kwargsrepr", "origin", "parent_id", "queue", "root_id",
    "routing_key", "serializer", "shadow",
)  # fmt: skip
#: options that are numbers, with what they count
_NUMBERS = {
    "countdown": " of seconds", "group_index": "", "retries": "", "soft_time_limit": " of seconds",
    "time_limit": " of seconds",
}  # fmt: skip
#: arguments of ``apply_async`` that this package sets
_OURS = (*_COLUMNS, "connection", "name", "producer", "publisher")
#: arguments of ``apply_async`` about its call, which a job does not have for each task
_OF_CALLS = (
    "add_to_parent", "confirm_timeout", "immediate", "mandatory", "result_cls", "retry", "retry_policy", "router",
    "timeout",
)  # fmt: skip


@dataclass(frozen=True)
class TaskArguments:
    """Arguments that :func:`kombu_opendata.spark.submit_tasks` describes; ``options`` are the further ones."""

    task: Any
    args: Any = None
    kwargs: Any = None
    queue: Any = None
    priority: Any = None
    eta: Any = None
    expires: Any = None
    task_id: Any = None
    headers: Any = None
    properties: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_routed_by_row(self) -> bool:
        """True if tasks or queues differ from row to row."""
        return isinstance(self.task, Column) or isinstance(self.queue, Column)

    def check(self, job_id: Any) -> None:
        """Validate the kinds of all arguments, not values in columns; raise RequestError with the remedy."""
        task, name = self.task, getattr(self.task, "name", None)
        hint = f": write {name!r}" if isinstance(name, str) else ""
        is_valid: object = isinstance(task, Column) or (isinstance(task, str) and task)
        check_option("task", task, is_valid, f"a task's name or a Column{hint}")
        for name, columns in (("args", self.args), ("kwargs", self.kwargs)):
            if isinstance(columns, (str, Column)):
                text = f"{name} is one column and must be a list of them: write {name}=[{columns!r}]"
                raise RequestError(text, option=name)
        check_option("args", self.args, isinstance(self.args, (list, tuple, NoneType)), "a list")
        is_valid = isinstance(self.kwargs, (list, tuple, Mapping, NoneType))
        check_option("kwargs", self.kwargs, is_valid, "a list, or a mapping of keywords")
        texts = {"queue": self.queue, "task_id": self.task_id, "job_id": job_id}
        for name, value in texts.items():
            is_column = isinstance(value, Column) and name != "job_id"
            check_option(name, value, is_column or isinstance(value, (str, NoneType)), "a text")
            if isinstance(value, str) and not value:
                raise RequestError(f"{name} is empty: write a text, or leave it out", option=name)
        for name, mapping in (("headers", self.headers), ("properties", self.properties)):
            check_option(name, mapping, isinstance(mapping, (Mapping, NoneType)), "a mapping of names to values")
        for name, mapping in (("headers", self.headers), ("kwargs", self.kwargs), ("properties", self.properties)):
            for key in mapping if isinstance(mapping, Collection) else ():
                if not isinstance(key, str):
                    raise RequestError(f"{name} has the name {key!r:.200}, which must be a text", option=name)
        for header in _OWN_HEADERS & set(self.headers or ()):
            raise RequestError(f"the header {header!r} can't be given, because each task has its own", option="headers")
        if not isinstance(self.priority, Column):
            priority_of(self.priority)
        check_options({**self.options, "eta": self.eta, "expires": self.expires})
        check_properties(self.properties or {})


def check_options(options: Mapping[str, Any]) -> None:
    """Validate options of ``apply_async``; raise RequestError, with the nearest name, for an unknown one."""
    stamps = options.get("stamped_headers")
    known = APPLY_OPTIONS | set(stamps if isinstance(stamps, (list, tuple, set)) else ())
    for option, value in options.items():
        if option not in known:
            raise RequestError(_refusal(option), option=option)
        if option in _TIMES:
            _check_time(option, value)
        elif isinstance(value, Column):
            hint = " (write eta=, a column of timestamps)" if option == "countdown" else ""
            raise RequestError(f"{option} can't be a column: it is the same for all rows{hint}", option=option)
    for option in _TEXTS:
        check_option(option, options.get(option), isinstance(options.get(option), (str, NoneType)), "a text")
    for option in ("link", "link_error"):
        callbacks = options.get(option)
        is_valid = all(isinstance(each, Mapping) for each in maybe_list(callbacks) or ())
        check_option(option, callbacks, is_valid, "a signature, or a list of them")
    for option, unit in _NUMBERS.items():
        number = options.get(option)
        check_option(option, number, number is None or _is_number(number), f"a number{unit}")
    priority_of(options.get("priority"))


def _refusal(option: str) -> str:
    """Return the reason why messages of a job can't have an option."""
    if option in _OURS:
        return f"{option!r} can't be among the options of apply_async: it is set here"
    if option in _ARGUMENTS:
        return f"{option!r} can't be among the options of apply_async: give it beside them"
    if option in _OF_CALLS:
        return f"{option!r} has no effect on the tasks of a job: leave it out"
    known = {*APPLY_OPTIONS, *_ARGUMENTS, *_COLUMNS}
    near = nearest(option, {*known, *_PROPERTIES})
    if near == option:
        return f"{option!r} is a property of AMQP messages: write properties={{{option!r}: …}}"
    hint = f": do you mean properties={{{near!r}: …}}?" if near in _PROPERTIES else did_you_mean(option, known)
    return f"there is no option {option!r}{hint}"


def check_properties(properties: Mapping[str, Any]) -> None:
    """Validate AMQP properties, which are the same for all rows; raise RequestError, with the nearest name."""
    for name, value in properties.items():
        if name in APPLY_OPTIONS:
            raise RequestError(f"{name!r} is an option of apply_async: give it beside properties", option=name)
        if name not in _PROPERTIES:
            raise RequestError(f"there is no property {name!r}{did_you_mean(name, _PROPERTIES)}", option=name)
        if not isinstance(value, _PROPERTIES[name]) or isinstance(value, bool):
            kinds = " or ".join("number" if kind is Real else kind.__name__ for kind in _PROPERTIES[name])
            text = f"the property {name} is {value!r:.200} and must be a {kinds}, the same for all rows"
            raise RequestError(text, option=name)


def _check_time(option: str, value: Any) -> None:
    is_valid: object = isinstance(value, (Column, datetime, NoneType)) or (option == "expires" and _is_number(value))
    with suppress(TypeError, ValueError):
        is_valid = is_valid or datetime.fromisoformat(value)
    kinds = "a datetime, a text in ISO 8601" + (", a number of seconds" if option == "expires" else "")
    check_option(option, value, is_valid, f"{kinds}, or a column of timestamps")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def job_settings(
    *, bad_rows: Any = "fail", if_exists: Any = "error_if_different", rate_limit: Any = None
) -> dict[str, Any]:
    """Return the settings of a job as fields of its plan; raise RequestError for a value that can't be."""
    check_choice("bad_rows", bad_rows, ("fail", "collect"))
    check_choice("if_exists", if_exists, ("error_if_different", "return"))
    is_valid = rate_limit is None or (_is_number(rate_limit) and 0 < rate_limit < math.inf)
    check_option("rate_limit", rate_limit, is_valid, "a number above 0, of tasks in a second")
    collects, returns = bad_rows == "collect", if_exists == "return"
    return {"collects_bad_rows": collects, "returns_existing": returns, "rate_limit": float(rate_limit or 0)}


#: limit for the tasks and queues for which the driver uses an app
MAX_TARGETS = 10_000


def check_frame(df: Any, *, streams: bool) -> None:
    """Raise RequestError, with the remedy, for what is not a frame of Spark or not of the expected kind."""
    if not isinstance(df, DataFrame):
        kind = f"{type(df).__module__.split('.')[0]}.{type(df).__qualname__}"
        convert = "df.to_spark()" if hasattr(df, "to_spark") else "spark.createDataFrame(df)"
        raise RequestError(f"df is a {kind} and must be a frame of Spark: write {convert}", option="df")
    if df.isStreaming and not streams:
        raise RequestError("df is a streaming frame: call stream_tasks, or use foreachBatch", option="df")
    if streams and not df.isStreaming:
        raise RequestError("df is not a streaming frame: call submit_tasks", option="df")


def without_duplicates(frame: DataFrame, duplicates: str) -> DataFrame:
    """Return the frame to write with each task id once; ``error`` raises RequestError for an id of several rows."""
    if duplicates == "first":
        own = F.when(F.col("task_id").isNull(), F.monotonically_increasing_id())  # each row without an id is a bad one
        return frame.withColumn("own", own).dropDuplicates(["task_id", "own"]).drop("own")
    repeated = frame.groupBy("task_id").count().where("count > 1 and task_id is not null").limit(1).collect()
    if repeated:
        id, count = repeated[0]
        text = f'{count} rows have the task id {id!r:.200}: make it unique, or send one of them by duplicates="first"'
        raise RequestError(text, option="task_id")
    return frame


def task_frame(df: DataFrame, arguments: TaskArguments, app_path: str) -> tuple[DataFrame, JobPlan]:
    """Return the frame to write and its plan, without templates; raise RequestError for a bad column or constant."""
    frame = _Frame(df)
    single = {name: getattr(arguments, name) for name in ("task", "queue", "priority", "eta", "expires")}
    varying = {name: frame.add(name, value) for name, value in single.items() if isinstance(value, Column)}
    constant = {name: value for name, value in single.items() if value is not None and name not in varying}
    if arguments.task_id is not None:
        varying["task_id"] = frame.add("task_id", arguments.task_id)
    kwargs = arguments.kwargs or ()
    if arguments.args is None and arguments.kwargs is None:
        if not df.columns:
            raise RequestError("df has no columns: write args=[] to send tasks without arguments", option="args")
        own_id = arguments.task_id if isinstance(arguments.task_id, str) else None
        kwargs = [name for name in df.columns if name != own_id]
    named = kwargs if isinstance(kwargs, Mapping) else {name: name for name in kwargs}
    headers = arguments.headers or {}
    columns = ColumnNames(
        args=tuple(frame.add_argument(f"args[{at}]", value) for at, value in enumerate(arguments.args or ())),
        kwargs={key: frame.add_argument(f"kwargs[{key}]", value) for key, value in named.items()},
        constants=frame.constants,
        headers={
            key: frame.add(f"headers[{key}]", value) for key, value in headers.items() if isinstance(value, Column)
        },
        **varying,
    )
    task, queue = constant.pop("task", ""), constant.pop("queue", "")
    options = {**arguments.options, **(arguments.properties or {}), **constant}
    plan = JobPlan(columns, task, queue, options, app_path=app_path, sources=frame.sources)
    if fixed := {key: value for key, value in headers.items() if key not in columns.headers}:
        plan.options["headers"] = fixed
    return frame.selected(), plan


class _Frame:
    """Builder of the frame to write."""

    def __init__(self, df: DataFrame) -> None:
        self._df = df
        self._columns: list[Column] = []
        self._names: list[str] = []
        self.constants: dict[str, Any] = {}  # arguments that are not columns, by name
        self.sources: dict[str, str] = {}  # Spark's name of the caller's expression for each column, by its name

    def add_argument(self, name: str, value: Any) -> str:
        """Add a column, or a constant; return its name."""
        if isinstance(value, (Column, str)):
            return self.add(name, value, f'; a constant text is F.lit("{value}")')
        try:
            cloudpickle.dumps(value)
        except Exception as exc:
            raise RequestError(f"{name} is {value!r:.200}, which can't be pickled: {exc}", option=name) from exc
        self.constants[name] = value
        return name

    def add(self, name: str, column: Column | str, hint: str = "") -> str:
        """Add a column, given as such or by its name in the caller's frame; return its name in the new frame.

        Raises:
            RequestError: no column has this name, and the text ends with ``hint``; or several have it.
        """
        if isinstance(column, str):
            check_column(column, self._df.columns, hint)
            column = named_column(column)
        self._columns.append(column.alias(name))
        self._names.append(name)
        return name

    def selected(self) -> DataFrame:
        """Return the frame of these columns, with types that Arrow supports; without columns, it has a constant one.

        Raises:
            RequestError: a column changes the number of rows, or Spark refuses it.
        """
        try:
            # in a struct a generator is refused, and beside the frame's columns an aggregate
            names = self._df.select("*", *map(F.struct, self._columns)).columns[len(self._df.columns) :]
        except AnalysisException as exc:
            raise RequestError(_refused_columns(exc)) from None
        for own, name in zip(self._names, names, strict=True):
            source = name.removeprefix("struct(").removesuffix(")")
            self.sources[own] = source.removesuffix(f" AS {own}").removesuffix(f" AS `{own}`")
        frame = self._df.select(*(self._columns or [F.lit(None).cast("boolean").alias("none")]))
        kinds = [(field.name, field.dataType, without_void(field.dataType)) for field in frame.schema.fields]
        changed = {name: named_column(name).cast(new) for name, old, new in kinds if new != old}
        return frame.withColumns(changed) if changed else frame  # Spark Connect refuses an empty dict


def _refused_columns(exc: AnalysisException) -> str:
    """Return the reason why Spark refuses the columns, in one line."""
    condition = exc.getCondition() or ""
    if condition.startswith("MISSING_GROUP_BY"):
        return "an argument aggregates rows: group the frame first, as in df.groupBy(…).agg(…)"
    if condition.startswith("UNSUPPORTED_GENERATOR"):
        return 'an argument makes several rows of each: make them first, as in df.select("*", F.explode(…))'
    return f"Spark refuses a column: {str(exc).splitlines()[0]}"


def make_templates(frame: DataFrame, plan: JobPlan, app: Any) -> None:
    """Create the plan's templates on the driver, as far as their tasks and queues are known, or raise RequestError.

    An app object, which executors don't have, creates all templates.
    """
    plan.check_columns(*arrow_schema(frame.schema))
    if plan.task and plan.columns.queue is None:
        plan.template((plan.task, plan.queue), app)
        check_constants(plan, arrow_schema(frame.schema)[0])
    elif app is not None:
        for target in _targets(frame, plan):
            plan.template(target, app)
    plan.closed = app is not None


def check_constants(plan: JobPlan, schema: pa.Schema) -> None:
    """Encode a row of nulls; raise RequestError if it can't be sent, which is then true of each row."""
    plan.template((plan.task, plan.queue))
    own = plan.columns.task_id
    fields = [field for field in schema if field.name != own]
    fields = fields or [pa.field("none", pa.null())]  # a batch without columns has no rows
    row = pa.record_batch([pa.nulls(1, field.type) for field in fields], [field.name for field in fields])
    encoder = RowEncoder(replace(plan, columns=replace(plan.columns, task_id=None)), "job", 0, lambda: 0)
    try:
        (messages,) = encoder.encode(row)
    except InvalidMessage as exc:
        raise RequestError(f"no row can be sent: {exc.values.get('reason', exc.text)}") from exc
    if len(messages.headers) > MAX_HEADERS:
        text = f"the messages have {len(messages.headers)} headers and may have {MAX_HEADERS}: give fewer"
        raise RequestError(text, option="headers", limit=MAX_HEADERS)


def _targets(frame: DataFrame, plan: JobPlan) -> list[Target]:
    columns = plan.columns
    names = [name for name in (columns.task, columns.queue) if name is not None]
    rows = frame.select(*map(named_column, names)).distinct().limit(MAX_TARGETS + 1).collect()
    if len(rows) > MAX_TARGETS:
        text = f"over {MAX_TARGETS} tasks and queues: give the app as module:attribute, so that the executors ask it"
        raise RequestError(text, limit=MAX_TARGETS)
    targets = []
    for row in rows:
        task = plan.task if columns.task is None else row[columns.task]
        queue = plan.queue if columns.queue is None else row[columns.queue]
        if task and (queue or columns.queue is None):  # otherwise the executor's error names the row
            targets.append((task, queue))
    return targets
