"""Some seeds of ``make faults``: real processes, kills and other faults, and no anomaly."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from kombu_opendata.cli.exit_codes import DAMAGED, REPLACED

from .machine import left_out
from .real_run import RealRun
from .scenario import LINK_FAULTS, draw

RUNS = 3
#: a seed whose brokers and clients are on hosts of their own
LINKED = 32


# What their clients do; others of its seeds alter and pause queues (10), and damage the store (15).
@pytest.mark.contract(1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 16, 17)
@pytest.mark.slow
def test_a_few_seeds_have_no_anomaly(tmp_path: Path) -> None:
    records, _output = run_seeds(tmp_path / "record.jsonl", 0, RUNS)
    assert sorted(each["seed"] for each in records) == list(range(RUNS))
    assert all(each["kills"] and not each["anomalies"] for each in records)


@pytest.mark.slow
def test_links_are_cut_where_the_machine_has_namespaces(tmp_path: Path) -> None:
    faults = draw(LINKED).faults
    assert {"cut a link", "drop packets"} < set(faults)
    (record,), output = run_seeds(tmp_path / "record.jsonl", LINKED, 1)
    assert not record["anomalies"]
    for fault in LINK_FAULTS:
        reason = left_out().get(fault)
        assert record["faults"].get(fault, 0) == (0 if reason else faults.count(fault))
        assert (f"left out: {fault}: {reason}" in output) is bool(reason)


def run_seeds(record: Path, first: int, count: int) -> tuple[list[Any], str]:
    """Run seeds without an anomaly; returns their records, and what was printed."""
    command = [sys.executable, "-m", "tests.histories", "--runs", str(count), "--seed", str(first)]
    command += ["--seconds", "3600", "--record", str(record)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [msgspec.json.decode(line) for line in record.read_bytes().splitlines()], done.stdout


def test_only_root_with_iproute2_has_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert left_out() == dict.fromkeys(LINK_FAULTS, "iproute2 is not installed")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert left_out() == dict.fromkeys(LINK_FAULTS, "only root may make network namespaces")


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
