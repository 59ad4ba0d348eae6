"""Export of a store's attempts to files or a table of Spark, in increments."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Observation
from pyspark.sql import functions as F

from .source import read_table

#: the folder with a row for each run, within the exported one; Spark's readers skip it, and so do others
_RUNS = "_exported"
RUN = "last_attempt_id long, rows long, missing long, ended_at_ms long"
_OBSERVED = ("count(*) rows", "max(attempt_id) last", "unix_millis(max_by(ended_at, attempt_id)) ended_at")
#: the last attempt before the first run
_NEVER = -1
#: the day of an attempt's end in UTC, whatever the session's time zone is
_DAY = "date_from_unix_date(int(floor(unix_seconds(ended_at) / 86400)))"

#: Attempts that ended this long before the last exported one are not read again, unless some are missing: numbers are
#: consecutive, and ascend with time unless the broker's clock is set back.
_CLOCK_STEPS = timedelta(hours=1)

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
    spark: Any,
    store: str,
    path: str,
    *,
    format: str = "parquet",
    instance: str | None = None,
    bucket: Mapping[str, str] | None = None,
    **options: Any,
) -> HistoryExport:
    """Append the attempts that ended since the last run to a folder, partitioned by ``day`` (UTC) and ``after``.

    Call it more often than retention deletes attempts, and one run at a time. Each attempt is exported exactly once: a
    run writes the partitions ``after=<last attempt of the run before>`` and then, in ``_exported``, its own last
    attempt. After a kill in between, the next run replaces these partitions.

    Args:
        spark: the session.
        store, instance, bucket: as in ``read_table``.
        path: the folder, local or remote. It must not have other files.
        format: any format with partitions, such as ``parquet``, ``orc`` or ``json``; or ``delta``, if the session has
            Delta Lake.
        options: options of this format.

    Raises:
        RequestError: the store has no such instance.
    """
    last, ended_at = _last_run(spark, path)
    found: dict[str, Any] = {}
    for since in dict.fromkeys((ended_at and ended_at - _CLOCK_STEPS, None)):
        observed = Observation()
        attempts = read_table(spark, store, "attempts", columns="*", gte=since, instance=instance, bucket=bucket)
        attempts = attempts.where(F.col("attempt_id") > last).observe(observed, *map(F.expr, _OBSERVED))
        attempts = attempts.withColumns({"day": F.expr(_DAY), "after": F.lit(last).cast("long")})
        writer = attempts.write.format(format).mode("overwrite").option("partitionOverwriteMode", "dynamic")
        writer.options(**options).partitionBy("day", "after").save(path)
        found = observed.get
        missing = 0 if not found["rows"] or last == _NEVER else found["last"] - last - found["rows"]
        if not missing:
            break
    if not found["rows"]:
        return HistoryExport(0, last, 0)
    if missing:
        log.warning("%d attempts were deleted before they were exported: export more often", missing)
    run = HistoryExport(found["rows"], found["last"], missing)
    row = [(run.last_attempt_id, run.rows, run.missing, found["ended_at"])]
    spark.createDataFrame(row, RUN).coalesce(1).write.mode("append").json(f"{path}/{_RUNS}")
    return run


def _last_run(spark: Any, path: str) -> tuple[int, datetime | None]:
    """Return the last exported attempt, and the time of its end."""
    try:
        run = spark.read.schema(RUN).json(f"{path}/{_RUNS}").orderBy(F.desc("last_attempt_id")).first()
    except AnalysisException as exc:
        if exc.getCondition() != "PATH_NOT_FOUND":
            raise
        return _NEVER, None
    return (run.last_attempt_id, datetime.fromtimestamp(run.ended_at_ms / 1000, UTC)) if run else (_NEVER, None)
