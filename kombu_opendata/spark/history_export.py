"""Export of a store's attempts to files or a table of Spark, in increments."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Observation
from pyspark.sql import functions as F

from .source import read_table

#: the folder with a row for each run, within the exported one; Spark's readers skip it, and so do others
_RUNS = "_exported"
_RUN = "last_attempt_id long, rows long, missing long"
#: the last attempt before the first run
_NEVER = -1
#: the day of an attempt's end in UTC, whatever the session's time zone is
_DAY = "date_from_unix_date(int(floor(unix_seconds(ended_at) / 86400)))"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HistoryExport:
    """One run of an export.

    Attributes:
        rows: the number of exported attempts.
        last_attempt_id: the last attempt of this run and all earlier ones; -1 if there was none yet.
        missing: the number of attempts that retention deleted after the last run and before this one.
    """

    rows: int
    last_attempt_id: int
    missing: int


def export_history(
    spark: Any, store: str, path: str, *, format: str = "parquet", instance: str | None = None, **options: Any
) -> HistoryExport:
    """Append the attempts that ended since the last run to a folder, partitioned by ``day`` (UTC) and ``after``.

    Call it more often than retention deletes attempts, and one run at a time. Each attempt is exported exactly once: a
    run writes the partitions ``after=<last attempt of the run before>`` and then, in ``_exported``, its own last
    attempt. After a kill in between, the next run replaces these partitions.

    Args:
        spark: the session.
        store: as in ``read_table``.
        path: the folder, local or remote. It must not have other files.
        format: any format with partitions, such as ``parquet``, ``orc`` or ``json``; or ``delta``, if the session has
            Delta Lake.
        instance: the store's instance; by default its only one.
        options: options of this format.

    Raises:
        RequestError: the store has no such instance.
    """
    last = _last_attempt(spark, path)
    observed = Observation()
    attempts = read_table(spark, store, "attempts", columns="*", instance=instance).where(F.col("attempt_id") > last)
    attempts = attempts.observe(
        observed, F.count("*").alias("rows"), F.min("attempt_id").alias("first"), F.max("attempt_id").alias("last")
    )
    attempts = attempts.withColumns({"day": F.expr(_DAY), "after": F.lit(last).cast("long")})
    writer = attempts.write.format(format).mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writer.options(**options).partitionBy("day", "after").save(path)
    found = observed.get
    if not found.get("rows"):
        return HistoryExport(0, last, 0)
    missing = 0 if last == _NEVER else found["first"] - last - 1
    if missing:
        log.warning("%d attempts were deleted before they were exported: export more often", missing)
    run = HistoryExport(found["rows"], found["last"], missing)
    row = [(run.last_attempt_id, run.rows, run.missing)]
    spark.createDataFrame(row, _RUN).coalesce(1).write.mode("append").json(f"{path}/{_RUNS}")
    return run


def _last_attempt(spark: Any, path: str) -> int:
    """Return the last attempt of all runs."""
    try:
        runs = spark.read.schema(_RUN).json(f"{path}/{_RUNS}")
        return int(runs.agg(F.expr(f"coalesce(max(last_attempt_id), {_NEVER})")).first()[0])
    except AnalysisException as exc:
        if exc.getCondition() != "PATH_NOT_FOUND":
            raise
        return _NEVER
