"""Some seeds of ``make faults``: real processes, kills and other faults, and no anomaly."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from kombu_opendata.cli.exit_codes import DAMAGED, REPLACED

from .real_run import RealRun
from .scenario import draw

RUNS = 3


# What their clients do; others of its seeds alter and pause queues (10), and damage the store (15).
@pytest.mark.contract(1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 16, 17)
@pytest.mark.slow
def test_a_few_seeds_have_no_anomaly(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    command = [
        sys.executable,
        "-m",
        "tests.histories",
        "--runs",
        str(RUNS),
        "--seconds",
        "3600",
        "--record",
        str(record),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [msgspec.json.decode(line) for line in record.read_bytes().splitlines()]
    assert sorted(each["seed"] for each in records) == list(range(RUNS))
    assert all(each["kills"] and not each["anomalies"] for each in records)


@pytest.mark.parametrize("has_standby", [True, False])
def test_without_a_fault_a_broker_is_only_replaced_by_a_standby(has_standby: bool) -> None:
    run = RealRun(structs.replace(draw(0), has_standby=has_standby), Path("not loaded"), None)
    try:
        assert run.may_end_with(REPLACED) is has_standby
        assert not run.may_end_with(DAMAGED)
    finally:
        for slot in run.slots:
            slot.close()
        run.record.close()
        shutil.rmtree(run.folder)
