"""Data source ``opendata``: ``df.write`` sends tasks, ``spark.read`` reads a store.

Call ``register(spark)`` once for each session, and in each thread. Readers and writers are imported when they
are used, because Spark imports this module in each of its Python processes.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from inspect import signature
from typing import TYPE_CHECKING, Any, Never
from weakref import WeakSet

from pyspark.sql import is_remote
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from ..errors import RequestError
from .arrow_schema import arrow_schema
from .option_text import BUCKET, bucket_options, bucket_settings_of, check_choice, check_known
from .read.tables import BOUNDS, TABLES, bound_options, check_columns, check_table, parse_bounds, schema_of
from .runtimes import check_worker_python

if TYPE_CHECKING:
    from ..celery_integration.broker_access import BrokerAccess
    from .encode.plan import JobPlan
    from .read.table_reader import TableReader
    from .write.task_writers import TaskStreamWriter, TaskWriter

NAME = "opendata"
_NO_CATALOG = (
    "Spark does not give the options of such a table to a Python source. To read, write CREATE TEMPORARY VIEW … USING "
    "opendata OPTIONS (table '…', store '…'), or call read_table. To send tasks, call submit_tasks"
)
_READ = frozenset(
    ("table", "store", "broker_url", "instance", "columns", "partitions", "parallelism", "path", *BOUNDS, *BUCKET)
)
_STREAM = frozenset(("maxRowsPerTrigger", "failOnDataLoss", "startingOffsets"))
_ALL = _READ | {name.lower() for name in _STREAM}


class _NoStream(DataSourceStreamReader):
    """Refusal of a stream; PySpark would hide an error of ``streamReader`` behind an UnboundLocalError."""

    def __init__(self, error: RequestError) -> None:
        self._error = error

    def _refuse(self, *_arguments: Any, **_named: Any) -> Any:
        raise self._error

    initialOffset = latestOffset = partitions = read = _refuse


class OpenDataSource(DataSource):
    """Data source; see :mod:`.write.write_options` for writing and :mod:`.read.tables` for reading."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return schema_of(self._table(), self.options.get("columns", ""))

    def reader(self, schema: Any) -> TableReader:
        """Return a reader of one table; raise RequestError for an unknown or missing option, table, column or bound."""
        for name in _STREAM:
            if name in self.options:
                raise RequestError(f"the option {name} is for streams: call readStream", option=name)
        return self._reader(schema)

    def _reader(self, schema: Any) -> TableReader:
        from .read.table_reader import PARALLELISM, TableReader

        table = self._table()
        check_columns(table, schema.names)
        store = self._store()
        partitions, parallelism = self._number("partitions", 0), self._number("parallelism", PARALLELISM)
        bucket = bucket_settings_of(self.options)
        arrow, _refused = arrow_schema(schema)
        rows = parse_bounds(table, self.options)
        return TableReader(
            table, store, self.options.get("instance"), arrow, rows, partitions, max(1, parallelism), bucket=bucket
        )

    def _number(self, option: str, default: int) -> int:
        text = self.options.get(option, str(default))
        if not text.isdecimal():
            raise RequestError(f"the option {option} is {text!r:.200}, not a number", option=option)
        return int(text)

    def _table(self) -> str:
        if "provider" in self.options:  # CREATE TABLE
            raise RequestError(f"a table of Spark's catalog can't be of this format: {_NO_CATALOG}")
        for option in self.options:
            if option.lower() not in _ALL:
                check_known(option, (_READ | _STREAM) - {"path"})
        table = self.options.get("table")
        if table is None:
            raise RequestError(
                f"name the table: the option table, one of {', '.join(TABLES)}. If this is a table of Spark's catalog, "
                f"drop it: {_NO_CATALOG}",
                option="table",
            )
        return check_table(table)

    def _store(self) -> str:
        names = {name: self.options[name] for name in ("store", "path", "broker_url") if self.options.get(name)}
        if not names:
            raise RequestError('name the store, a folder or a bucket\'s URL: load("/folder"), or the option store')
        if "store" in names and names.get("path", names["store"]) != names["store"]:
            raise RequestError(f"load names the store {names['path']!r} and the option store {names['store']!r}")
        return next(iter(names.values()))

    def writer(self, schema: Any, overwrite: bool) -> TaskWriter:
        from .write.task_writers import TaskWriter

        plan, access = self._parse(schema, overwrite)
        job_id = self.options.get("job_id", str(uuid.uuid4()))
        return TaskWriter(plan, access, job_id, self.options.get("report", ""))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Return a reader of the new rows of a table; :mod:`.read.stream_reader` lists its options."""
        try:
            return self._stream(schema)
        except RequestError as exc:
            return _NoStream(exc)

    def _stream(self, schema: Any) -> DataSourceStreamReader:
        from .read.stream_reader import HAS_LIMITS, STREAMED, TableStream

        table = self._table()
        if table not in STREAMED:
            reason = "its rows change, and a stream only has new ones" if table != "results" else "it has no order"
            raise RequestError(f"the table {table} can't be a stream, as {reason}: call read_table, or spark.read")
        for bound in BOUNDS:
            if self.options.get(bound):
                raise RequestError(f"a stream has no bound {bound!r}: use where(…)", option=bound)
        max_rows, options = self._number("maxRowsPerTrigger", 0), self.options
        if max_rows and not HAS_LIMITS:
            raise RequestError("maxRowsPerTrigger needs PySpark 4.2", option="maxRowsPerTrigger")
        fails = options.get("failOnDataLoss", "true").lower()
        start = options.get("startingOffsets", "earliest").lower()
        check_choice("failOnDataLoss", fails, ("true", "false"))
        check_choice("startingOffsets", start, ("earliest", "latest"))
        reader, fails_on_data_loss, from_latest = self._reader(schema), fails == "true", start == "latest"
        return TableStream(
            table, reader, max_rows=max_rows, fails_on_data_loss=fails_on_data_loss, from_latest=from_latest
        )

    def streamWriter(self, schema: Any, overwrite: bool) -> TaskStreamWriter:
        from .write.task_writers import TaskStreamWriter

        plan, access = self._parse(schema, overwrite)
        return TaskStreamWriter(plan, access, self.options.get("job_id", ""))

    def _parse(self, schema: Any, overwrite: bool) -> tuple[JobPlan, BrokerAccess]:
        """Return the plan and its broker, or raise RequestError; create the template if all rows have the same."""
        from .write.write_options import parse_write_options

        if not self.options:
            raise RequestError(f"a table of Spark's catalog can't take tasks: {_NO_CATALOG}")
        if overwrite:
            raise RequestError('tasks can only be added: use mode("append")')
        plan, access = parse_write_options(self.options, *arrow_schema(schema))
        if plan.task and plan.columns.queue is None:
            plan.template((plan.task, plan.queue))
        return plan, access


def register(spark: Any) -> None:
    """Register the format ``opendata`` with a session, and make the session this thread's active one.

    Spark looks up formats in the active session, even for a frame of another session.

    Raises:
        StartError: Spark would run a Python without this package.
    """
    if not is_remote():  # a Spark Connect server has its own Python, and requests name their session
        check_worker_python(os.environ.get("PYSPARK_PYTHON", "python3"))
        spark.createDataFrame([], StructType())  # makes the session active; PySpark has no separate call for this
    if spark not in _registered:  # Spark warns of each further registration
        spark.dataSource.register(OpenDataSource)
        _registered.add(spark)


_registered: WeakSet[Any] = WeakSet()
_DESCRIPTION = "spark.job.description"


@contextmanager
def job_description(spark: Any, text: str) -> Iterator[None]:
    """Describe Spark's jobs in the block for the Spark UI. Spark Connect has no such call."""
    if is_remote():
        yield
        return
    context = spark.sparkContext
    before = context.getLocalProperty(_DESCRIPTION)
    context.setJobDescription(f"opendata: {text}")
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)


def read_table(
    spark: Any,
    store: str,
    table: str,
    *,
    columns: Sequence[str] = (),
    first_id: int | None = None,
    last_id: int | None = None,
    gte: datetime | None = None,
    gt: datetime | None = None,
    lte: datetime | None = None,
    lt: datetime | None = None,
    queues: Iterable[str] | None = None,
    statuses: Iterable[str] | None = None,
    job_id: str | None = None,
    instance: str | None = None,
    partitions: int = 0,
    bucket: Mapping[str, str] | None = None,
    **unknown: Never,
) -> Any:
    """Return a table of a store as a frame, with or without a running broker.

    Only rows within the bounds are read. :mod:`.read.tables` lists the bounds of each table.

    Args:
        store: the store's folder, or the URL of its bucket.
        columns: the columns to read: names, or a text with commas; by default all that are not expensive.
        gte: messages received, or attempts ended, at this time or later; in UTC if it has no time zone.
        gt, lte, lt: the same for later than, at or earlier than, and earlier than this time.
        queues: rows of these queues; all if empty.
        statuses: entries in these states; all if empty.
        job_id: results of the tasks of this job.
        instance: the store's instance; by default its only one.
        partitions: the most partitions; 0 chooses by size and cores. One of messages or attempts has at least 100,000
            rows, unless large columns are read.
        bucket: settings of the store's bucket, instead of the environment's: endpoint, region, access_key_id,
            secret_access_key, session_token.

    Raises:
        RequestError: there is no such table, column or bound.
    """
    for name in unknown:
        check_known(name, signature(read_table).parameters.keys() - {"unknown"})
    names = ",".join([columns] if isinstance(columns, str) else columns)
    table = check_table(table)
    schema_of(table, names)  # checked here, because Spark hides a source's errors in a traceback
    rows = bound_options(
        first_id=first_id, last_id=last_id, gte=gte, gt=gt, lte=lte, lt=lt, queues=queues, statuses=statuses,
        job_id=job_id,
    )  # fmt: skip
    parse_bounds(table, rows)
    register(spark)
    reader = spark.read.format(NAME).option("store", store).option("table", table).options(**rows)
    reader = reader.options(**bucket_options(bucket)).option("columns", names).option("partitions", partitions)
    if not is_remote():
        reader = reader.option("parallelism", spark.sparkContext.defaultParallelism)
    return (reader if instance is None else reader.option("instance", instance)).load()
