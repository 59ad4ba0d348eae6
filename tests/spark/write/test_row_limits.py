"""The memory of the rows of a job."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from kombu_opendata.spark.write.row_limits import BATCH_BYTES, small_batches, without_large_rows

_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
MIB = 1 << 20


def frame(spark: Any, rows: int, size: str) -> Any:
    """Rows with a text of so many bytes, which Spark does not compute before it runs."""
    return spark.range(0, rows, numPartitions=1).select("id", F.expr(f"repeat(string(id % 10), {size})").alias("text"))


def test_the_limit_holds_for_the_job_only(spark: Any) -> None:
    with small_batches(spark):
        assert spark.conf.get(_BATCH_BYTES) == str(BATCH_BYTES)
    assert spark.conf.get(_BATCH_BYTES, None) is None
    for own, limit in (("1000", "1000"), ("100000000", str(BATCH_BYTES))):
        spark.conf.set(_BATCH_BYTES, own)
        try:
            with small_batches(spark):
                assert spark.conf.get(_BATCH_BYTES) == limit
            assert spark.conf.get(_BATCH_BYTES) == own
        finally:
            spark.conf.unset(_BATCH_BYTES)


def test_python_receives_few_large_rows_at_a_time(spark: Any) -> None:
    def sizes(batches: Any) -> Any:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})

    with small_batches(spark):
        rows = frame(spark, 12, str(10 * MIB)).mapInArrow(sizes, "rows long").collect()
    assert max(row.rows for row in rows) <= 2
    assert sum(row.rows for row in rows) == 12


def test_a_row_that_the_broker_would_refuse_is_refused_by_spark(spark: Any) -> None:
    def nothing(batches: Any) -> Any:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"bytes": [batch.nbytes]})

    limit = 128 * MIB
    large = frame(spark, 4, f"if(id = 2, {150 * MIB}, 3)")
    with pytest.raises(PySparkException, match=r"row 2 of partition 0 can't be sent: text has 157286400 bytes"):
        without_large_rows(large, limit).mapInArrow(nothing, "bytes long").collect()
    assert without_large_rows(frame(spark, 4, "3"), limit).collect() == frame(spark, 4, "3").collect()
    assert without_large_rows(spark.range(3), limit).columns == ["id"]
