"""Trends and lines from what the broker remembers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from kombu_opendata.protocol.messages import MetricSeries, RecentMetrics
from kombu_opendata.web.rendering import spark_points
from kombu_opendata.web.reports.queue_metrics import Trend, charts, trend

START = datetime(2026, 11, 23, 12, tzinfo=UTC)
TIMES = tuple(START + timedelta(seconds=5 * number) for number in range(4))
TIMES_MS = [round(1000 * at.timestamp()) for at in TIMES]


def series(**lines: Any) -> MetricSeries:
    nothing: tuple[None, ...] = (None,) * len(TIMES)
    calm = dict.fromkeys(MetricSeries.__struct_fields__, nothing)
    return MetricSeries(**{**calm, **lines})


def test_a_trend_begins_where_the_broker_remembers_the_queue() -> None:
    found = series(
        ready=(None, 10, 20, 70), published_per_second=(None, 2.0, 4.0, 12.0), acked_per_second=(None, 0.0, 2.0, 2.0)
    )
    recent = RecentMetrics(0, TIMES_MS, {"mail": found, "new": series()}, None)
    assert trend(recent, "mail") == Trend(10.0, 10, 80, 20)
    assert trend(recent, "new") is None
    assert trend(recent, "other") is None


def test_charts_need_the_sums_of_all_queues() -> None:
    recent = RecentMetrics(0, TIMES_MS, {}, None)
    assert charts(recent, None) == ()
    rates, levels = charts(recent, series(ready=(1, 2, 3, 4)))
    assert rates.times[1] - rates.times[0] == 5
    assert levels.series[0].values == (1, 2, 3, 4)


def test_a_line_fills_its_box() -> None:
    assert spark_points((0, 5, 10)) == "0,19 50,10 100,1"
    assert spark_points((None, 3, None)) == "50,1"
    assert spark_points((0, 0)) == "0,19 100,19"
    assert spark_points(()) == ""
