"""The whole way: rows become tasks, two workers run them, results and history come back, failures run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..support.spark_round_trip import round_trip

pytestmark = pytest.mark.timeout(1800)

#: a tenth of those of `make bench ONLY=spark_job`
ROWS = 100_000


def test_every_row_is_accounted_for(spark: Any, broker_url: str, store_folder: Path, tmp_path: Path) -> None:
    round_trip(spark, broker_url, store_folder, tmp_path, ROWS, timeout=1500)
