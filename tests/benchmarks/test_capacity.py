"""The page docs/capacity.md follows from its constants."""

from __future__ import annotations

import pytest

from . import capacity
from .results import Results
from .targets import OURS


def test_the_page_follows_from_its_constants() -> None:
    page = (capacity.DOCS / "capacity.md").read_text(encoding="utf-8")
    assert page == capacity.written(), "run: python -m tests.benchmarks.capacity --out docs/capacity.md"


def test_a_rate_is_that_of_four_fifths_of_a_core() -> None:
    results = Results()
    for key, value in (("alone", 200.0), ("stream", 40.0), ("consumed", 10.0), ("all", 100.0)):
        results.add(f"cpu.{key}", OURS, value)
    assert [row[2] for row in capacity.rates(results)] == ["4,000", "20,000", "80,000", "16,000", "8,000"]


def test_a_missing_load_is_named() -> None:
    with pytest.raises(LookupError, match="object-stores"):
        capacity.requests("| idle for five minutes | 0 | 270 |")


def test_a_billion_tasks_cost_their_requests_hosts_and_storage() -> None:
    loads = {"load": capacity.Requests(1000, 20.0, 10.0)}
    prices = {"s3_write": 5e-6, "s3_read": 4e-7, "host_hour": 0.36, "s3_gb_month": 0.0, "disk_gb_month": 0.0}
    task = {"kept_days": 1.0, "payload_kb": 1.0, "record_kb": 1.0, "disk_gb": 50.0}
    # a million seconds of 20 writes ($100) and 10 reads ($4), and of hosts at $100 each
    assert list(capacity.billion(loads, prices, task)) == [("1,000", "12 days", "$104", "$200", "$304", "$100")]
