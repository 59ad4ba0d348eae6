"""The samples behind the page outlive a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from . import report
from .record import Record, measured
from .results import Results
from .targets import OURS, RABBITMQ
from .workloads import Sizes

FACTS = {
    "date": "2026-01-02 03:04 UTC",
    "commit": "abc1234",
    "load average before": "0.10",
    "disk": "ext4",
    "Python": "3.11",
}


def results(key: str, *values: float) -> Results:
    found = Results(remarks=["One for all."])
    for value in values:
        found.add(key, OURS, value)
    return found


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Two workloads of one run."""
    made = Record(tmp_path / "benchmarks" / "samples.json")
    found = results("publish.rate", 1.0, 2.0)
    found.add("publish.rate", RABBITMQ, 1.0)
    made.add("publish", measured(found, Sizes(), FACTS, {OURS: "1", RABBITMQ: "4"}, 90.0))
    found = results("backlog.memory", 200.0)
    found.failures["restart"] = "too late"
    made.add("backlog", measured(found, replace(Sizes(), backlog=80), FACTS, {OURS: "1"}, 30.0))
    return made


def test_a_later_run_replaces_what_it_measures_and_keeps_the_rest(record: Record, tmp_path: Path) -> None:
    again = Record(tmp_path / "benchmarks" / "samples.json")
    assert again.workloads == record.workloads
    later = results("backlog.memory", 100.0)
    later.add_point("queues", "rss", 10, 5.0)
    again.add("backlog", measured(later, replace(Sizes(), backlog=160), {**FACTS, "commit": "def"}, {}, 60.0))
    merged = Record(tmp_path / "benchmarks" / "samples.json").results({})
    assert merged.samples == {
        ("publish.rate", OURS): [1.0, 2.0],
        ("publish.rate", RABBITMQ): [1.0],
        ("backlog.memory", OURS): [100.0],
    }
    assert merged.points == {("queues", "rss"): {10: [5.0]}}
    assert (merged.failures, merged.remarks) == ({}, ["One for all."])


def test_the_data_page_names_each_run_and_all_brokers(record: Record) -> None:
    run = report.Run.of(record, Sizes(), {}, {OURS: "2"})
    assert (run.sizes.backlog, run.sizes.peers_backlog) == (80, Sizes().peers_backlog)
    assert run.versions == {OURS: "2", RABBITMQ: "4"}
    page = report.data_page(run)
    assert "| 2026-01-02 03:04 UTC | abc1234 | 5 | 0.10 | ext4 | publish: 1.5, backlog: 0.5 |" in page
    assert "restart: could not be measured: too late" in page
    assert "| Python | 3.11 |" in page
    unmeasured = page[page.index("Not measured:") :].split("\n\n")[0]
    assert "latency" in unmeasured
    assert "publish," not in unmeasured
    assert "80 messages wait" in page


def test_without_a_file_nothing_is_kept(tmp_path: Path) -> None:
    Record().add("publish", measured(Results(), Sizes(), {}, {}, 0.0))
    assert not list(tmp_path.iterdir())
