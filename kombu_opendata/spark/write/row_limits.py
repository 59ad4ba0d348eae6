"""Limits for the rows that Spark's JVM has in memory for Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType

#: the most bytes of the rows that Spark's JVM collects for one transfer to Python, unless a row is larger
BATCH_BYTES = 16 << 20
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_ROW = "row number of the partition"
_NUMBER_BITS = 33


def without_large_rows(frame: DataFrame, limit: int) -> DataFrame:
    """Return a frame whose rows fail the job if a text or binary column has more than ``limit`` bytes.

    The message of such a row would be too large, and the JVM holds several copies of a row, so it may run out of memory
    before Python sees the row.
    """
    names = [field.name for field in frame.schema.fields if isinstance(field.dataType, (StringType, BinaryType))]
    if not names:
        return frame
    numbered = frame.withColumn(_ROW, F.monotonically_increasing_id().bitwiseAND((1 << _NUMBER_BITS) - 1))
    checked = {name: _checked(named_column(name), name, limit) for name in names}
    return numbered.select(*(checked.get(name, named_column(name)).alias(name) for name in frame.columns))


def _checked(column: Column, name: str, limit: int) -> Column:
    text = F.concat(
        F.lit("row "),
        named_column(_ROW).cast("string"),
        F.lit(" of partition "),
        F.spark_partition_id().cast("string"),
        F.lit(f" can't be sent: {name} has "),
        F.octet_length(column).cast("string"),
        F.lit(f" bytes and the broker's limit is {limit}: store large data elsewhere and send a reference"),
    )
    return F.when(F.octet_length(column) > limit, F.raise_error(text)).otherwise(column)


def named_column(name: str) -> Column:
    """Return the column with a name that may have dots and backticks."""
    return F.col(f"`{name.replace('`', '``')}`")


@contextmanager
def small_batches(spark: Any) -> Iterator[None]:
    """Limit the bytes of rows that jobs of the block transfer to Python together, unless the user's limit is lower."""
    own = spark.conf.get(_BATCH_BYTES, None)
    if own is not None and int(own) <= BATCH_BYTES:
        yield
        return
    spark.conf.set(_BATCH_BYTES, str(BATCH_BYTES))
    try:
        yield
    finally:
        if own is None:
            spark.conf.unset(_BATCH_BYTES)
        else:
            spark.conf.set(_BATCH_BYTES, own)
