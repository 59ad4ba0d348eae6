"""The whole way: rows become tasks, two workers run them, results and history come back, failures run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.spark import submit_tasks

from ..support.spark_round_trip import round_trip

pytestmark = pytest.mark.timeout(1800)

#: the tasks, and the rows beside them: a tenth of those of `make bench ONLY=spark_job`
TASKS, ROWS = 100_000, 1_000_000


def test_every_row_is_accounted_for(spark: Any, broker_url: str, store_folder: Path, tmp_path: Path) -> None:
    round_trip(spark, broker_url, store_folder, tmp_path, TASKS, timeout=1500)


def test_a_million_rows_can_be_delivered(spark: Any, broker_url: str) -> None:
    rows = spark.range(ROWS, numPartitions=16)
    job = submit_tasks(rows, "proj.step", broker_url=broker_url, queue="rows", args=["id"])
    assert job.wait_routed(timeout=900).rows == ROWS
    with QueueClient(broker_url) as client:
        assert client.metrics("rows").ready == ROWS
        assert len(client.read("rows", qty=100)) == 100
