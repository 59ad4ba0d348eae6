"""The data source ``opendata``: ``df.write.format("opendata")`` sends tasks, ``spark.read`` looks into a store.

Register it once per session: ``register(spark)``.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import to_arrow_schema

from ..errors import RequestError
from .options import WriteOptions, check_serializer, new_job_id, parse_write_options
from .writer import TaskStreamWriter, TaskWriter

NAME = "opendata"


class OpenDataSource(DataSource):
    """See :mod:`.options` for writing and :mod:`.tables` for reading."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def writer(self, schema: Any, overwrite: bool) -> TaskWriter:
        found = self._parse(schema, overwrite)
        return TaskWriter(found.plan, found.access, found.job_id or new_job_id(), found.report)

    def streamWriter(self, schema: Any, overwrite: bool) -> TaskStreamWriter:
        found = self._parse(schema, overwrite)
        return TaskStreamWriter(found.plan, found.access, found.job_id)

    def _parse(self, schema: Any, overwrite: bool) -> WriteOptions:
        """The options, checked; the template of a task that all rows share is made here.

        Raises:
            RequestError: they can't be followed.
        """
        if overwrite:
            raise RequestError('tasks can only be added: use mode("append")')
        found = parse_write_options(self.options, to_arrow_schema(schema, timezone="UTC"))
        plan = found.plan
        if plan.task and plan.columns.queue is None:
            check_serializer(plan, plan.template((plan.task, plan.queue)).serializer)
        return found


def register(spark: Any) -> None:
    """Make the format ``opendata`` known to a session."""
    spark.dataSource.register(OpenDataSource)
