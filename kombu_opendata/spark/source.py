"""The data source ``opendata``: ``df.write.format("opendata")`` sends tasks, ``spark.read`` looks into a store.

Register it once per session, and in each thread: ``register(spark)``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import is_remote
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from ..errors import RequestError
from .read import bounds
from .read.tables import TABLES, check_columns, check_table, schema_of
from .worker_python import check_worker_python

if TYPE_CHECKING:
    from .read.table_reader import TableReader
    from .write.task_writers import TaskStreamWriter, TaskWriter
    from .write.write_options import WriteOptions

NAME = "opendata"
_NO_CATALOG = (
    "Spark hands the options of such a table to no Python source. To read, write CREATE TEMPORARY VIEW … USING "
    "opendata OPTIONS (table '…', store '…'), or call read_table. To send tasks, call submit_tasks"
)
_READ = frozenset(("table", "store", "broker_url", "instance", "columns", "partitions", "path", *bounds.NAMES))


class OpenDataSource(DataSource):
    """See :mod:`.options` for writing and :mod:`.tables` for reading."""

    @classmethod
    def name(cls) -> str:
        return NAME

    # ---- reading
    def schema(self) -> str:
        return schema_of(self._table(), self.options.get("columns", ""))

    def reader(self, schema: Any) -> TableReader:
        """Options: ``table``, ``store`` (or the argument of ``load``, or ``broker_url`` of a folder), ``instance``,
        ``columns``, ``partitions``, and those of :mod:`.bounds`.

        Raises:
            RequestError: there is no such option, table, column or bound, or no store is named.
        """
        from .arrow_schema import arrow_schema
        from .read.table_reader import TableReader  # a process that writes has no use for it

        table = self._table()
        check_columns(table, schema.names)
        for option in self.options:
            if option.lower() not in _READ:
                known = ", ".join(sorted(_READ - {"path"}))
                raise RequestError(f"unknown option {option!r}: choose from {known}", option=option)
        store = self._store()
        partitions = self.options.get("partitions", "0")
        if not partitions.isdecimal():
            raise RequestError(f"the option partitions is {partitions!r}, not a number", option="partitions")
        arrow, _refused = arrow_schema(schema)
        rows = bounds.parse_bounds(table, self.options)
        return TableReader(table, store, self.options.get("instance"), arrow, rows, int(partitions))

    def _table(self) -> str:
        if "provider" in self.options:  # CREATE TABLE
            raise RequestError(f"a table of Spark's catalog can't be of this format: {_NO_CATALOG}")
        table = self.options.get("table")
        if table is None:
            raise RequestError(
                f"name the table: the option table, one of {', '.join(TABLES)}. If this is a table of Spark's catalog, "
                f"drop it: {_NO_CATALOG}",
                option="table",
            )
        return check_table(table)

    def _store(self) -> str:
        given = {name: self.options[name] for name in ("store", "path", "broker_url") if self.options.get(name)}
        if not given:
            raise RequestError('name the store, a folder or a bucket\'s URL: load("/folder"), or the option store')
        if "store" in given and given.get("path", given["store"]) != given["store"]:
            raise RequestError(f"load names the store {given['path']!r} and the option store {given['store']!r}")
        return next(iter(given.values()))

    # ---- writing
    def writer(self, schema: Any, overwrite: bool) -> TaskWriter:
        from .write.task_writers import TaskWriter
        from .write.write_options import new_job_id

        found = self._parse(schema, overwrite)
        return TaskWriter(found.plan, found.access, found.job_id or new_job_id(), found.report)

    def streamWriter(self, schema: Any, overwrite: bool) -> TaskStreamWriter:
        from .write.task_writers import TaskStreamWriter

        found = self._parse(schema, overwrite)
        return TaskStreamWriter(found.plan, found.access, found.job_id)

    def _parse(self, schema: Any, overwrite: bool) -> WriteOptions:
        """The options, checked; the template of a task that all rows share is made here.

        Raises:
            RequestError: they can't be followed.
        """
        from .arrow_schema import arrow_schema
        from .write.write_options import parse_write_options

        if not self.options:
            raise RequestError(f"a table of Spark's catalog can't take tasks: {_NO_CATALOG}")
        if overwrite:
            raise RequestError('tasks can only be added: use mode("append")')
        found = parse_write_options(self.options, *arrow_schema(schema))
        plan = found.plan
        if plan.task and plan.columns.queue is None:
            plan.template((plan.task, plan.queue))
        return found


def register(spark: Any) -> None:
    """Make the format ``opendata`` known to a session, and the session this thread's active one: that is the one in
    which Spark looks for formats, whatever session a frame has.

    Raises:
        StartError: Spark would run another Python, one without this package.
    """
    if not is_remote():  # a server of Spark Connect has its own Python, and each request names its session
        check_worker_python(os.environ.get("PYSPARK_PYTHON", "python3"))
        spark.createDataFrame([], StructType())  # makes the session active; PySpark has no call that does only that
    spark.dataSource.register(OpenDataSource)


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
    instance: str | None = None,
    partitions: int = 0,
) -> Any:
    """A table of a store as a frame; the store's broker may run or not.

    Only what is within the bounds is read and comes; which tables have which of them: see :mod:`.bounds`.

    Args:
        store: the store's folder, or the URL of its bucket.
        table: see :mod:`.tables`.
        columns: those that are wanted, names or a text with commas between; without it all but the costly ones.
        first_id, last_id: message ids from and up to these.
        gte, gt, lte, lt: received (messages) or ended (attempts) at or after, after, at or before, before this time,
            which is UTC if it has no zone.
        queues: only what is or was in these; all when empty.
        statuses: entries in these states only; all when empty.
        instance: of the store; its only one when not given.
        partitions: how many, about; 0 for as many as fit.

    Raises:
        RequestError: there is no such table, column or bound.
    """
    names = ",".join([columns] if isinstance(columns, str) else columns)
    schema_of(table, names)  # here, as Spark buries what a source says in a traceback
    rows = bounds.bound_options(
        {
            "first_id": first_id,
            "last_id": last_id,
            "gte": gte,
            "gt": gt,
            "lte": lte,
            "lt": lt,
            "queues": queues,
            "statuses": statuses,
        }
    )
    bounds.parse_bounds(table, rows)
    register(spark)
    reader = spark.read.format(NAME).option("store", store).option("table", table).options(**rows)
    reader = reader.option("columns", names).option("partitions", partitions)
    return (reader if instance is None else reader.option("instance", instance)).load()
