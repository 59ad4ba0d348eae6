"""Results of a job's tasks: from any result backend of Celery, decoded into a schema, and joined to the tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from celery import states
from celery.backends.base import KeyValueStoreBackend
from kombu.utils import json
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from ..celery_integration.broker_access import load_app

#: columns of the table ``results``, which the results of another backend have, too
RESULT_COLUMNS = ("task_id", "state", "value", "exception", "error", "traceback", "raw")
_DDL = f"{' string, '.join(RESULT_COLUMNS)} binary"
_SCHEMA = pa.schema([*((name, pa.string()) for name in RESULT_COLUMNS[:-1]), ("raw", pa.binary())])
#: ids that are requested together
_IDS = 1_000
#: Kombu's JSON of a time or a number, which is a plain text for Spark
_TYPED = r'\{"__type__": ?"(?:datetime|date|time|decimal)", ?"__value__": ?("[^"]*")\}'
#: the state of a task whose history is not stored or has no state, by Celery's state of its result
_STATE = """case when state not in ('acknowledged', 'collected', 'running') then state
    when found.state = 'SUCCESS' then 'succeeded'
    when found.state = 'FAILURE' then 'raised'
    when found.state in ('REVOKED', 'IGNORED') then lower(found.state)
    else state end"""
_REASON = """case when found.raw is not null and found.value is null and found.exception is null
    then 'the result is not JSON'
    when found is null and state = 'succeeded' then 'no result is stored: it has expired, is ignored, or is elsewhere'
    end"""
#: the characters of a value in a reason
_SHOWN = 200


def backend_results(spark: Any, ids: Any, app: Any) -> Any:
    """Return the results of these task ids, a frame with one column, from an app's result backend, as a frame."""
    ids = ids.where("task_id is not null")

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        backend = (load_app(app) if isinstance(app, str) else app).backend
        for batch in batches:
            for start in range(0, batch.num_rows, _IDS):
                some = batch.column(0).slice(start, _IDS).to_pylist()
                yield pa.RecordBatch.from_pylist(_read(backend, some), _SCHEMA)

    if isinstance(app, str):
        return ids.mapInArrow(read, _DDL)
    return spark.createDataFrame(pa.Table.from_batches(read(ids.toArrow().to_batches()), _SCHEMA), _DDL)


def _read(backend: Any, ids: list[str]) -> list[dict[str, Any]]:
    """Return the stored results of these tasks as rows."""
    if isinstance(backend, KeyValueStoreBackend):
        found = dict(backend.get_many(ids, interval=0, max_iterations=1))
    else:
        found = {id: backend.get_task_meta(id, cache=False) for id in ids}
    return [_row(id, meta) for id, meta in found.items() if meta["status"] != states.PENDING]


def _row(id: str, meta: dict[str, Any]) -> dict[str, Any]:
    row, result = {"task_id": id, "state": meta["status"], "traceback": meta.get("traceback")}, meta["result"]
    if isinstance(result, BaseException):
        kind = type(result)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        return {**row, "exception": name, "error": str(result)}
    try:
        return {**row, "value": json.dumps(result)}
    except (TypeError, ValueError):  # of another serializer
        return {**row, "raw": repr(result).encode()}


def with_values(tasks: Any, results: Any, schema: Any) -> Any:
    """Return the tasks with their results; ``schema`` is as in :meth:`.SubmitResult.results`."""
    rows = tasks.join(results.select("task_id", F.struct("*").alias("found")), "task_id", "left")
    value, reason = F.col("found.value"), F.expr(_REASON)
    if schema is not None:
        kind = schema if isinstance(schema, str) else schema.simpleString()
        text = F.concat(F.lit('{"value":'), F.regexp_replace(value, _TYPED, "$1"), F.lit("}"))
        options = {"columnNameOfCorruptRecord": "unfit"}
        parsed: Any = f"value {kind}, unfit string"
        if not isinstance(schema, str):
            parsed = StructType([StructField("value", schema), StructField("unfit", StringType())])
        rows = rows.withColumn("parsed", F.from_json(text, parsed, options))
        is_unfit = F.col("parsed.unfit").isNotNull()
        unfit = F.concat(F.lit(f"the result does not fit {kind}: "), F.substring(value, 1, _SHOWN))
        reason = F.when(is_unfit, unfit).otherwise(reason)
        value = F.when(~is_unfit, F.col("parsed.value"))
    failure = [F.coalesce(name, f"found.{name}").alias(name) for name in ("exception", "error", "traceback")]
    return rows.select(
        "task_id", "task", "message_id", "queue", F.expr(_STATE).alias("state"), value.alias("value"),
        reason.alias("reason"), *failure, "ended_at", "runtime_ms", "worker", "attempts",
    )  # fmt: skip
