"""The benchmark judges itself by these few lines of arithmetic, so they are tested."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import report
from .results import Results
from .targets import RABBITMQ, REDIS, ROWS, WORKLOADS, AtLeast, AtMost, Row
from .workloads import Sizes

ROW = Row("celery.rate", "work", "tasks/s", (AtLeast(1.25, RABBITMQ), AtLeast(4.0, REDIS)))


def a_run(**series: list[float]) -> Results:
    results = Results()
    for name, values in series.items():
        for value in values:
            results.add("celery.rate", name, value)
    return results


def test_ratio_is_median_over_median_with_the_spread_of_the_rounds() -> None:
    ratio = a_run(ours=[100, 300, 200], rabbitmq=[100, 100, 50]).ratio("celery.rate", RABBITMQ)
    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high) == (2.0, 1.0, 4.0)


def test_each_thing_asked_is_judged_by_itself() -> None:
    results = a_run(ours=[200], rabbitmq=[100], redis=[100])
    assert report.verdict(ROW, results) == "yes, **no**"
    assert report.verdict(ROW, a_run(ours=[400], rabbitmq=[100], redis=[100])) == "yes"


def test_what_was_not_measured_is_not_met() -> None:
    assert report.verdict(ROW, a_run(ours=[200])) == "not measured"
    assert report.verdict(ROW, a_run(rabbitmq=[200], redis=[1])) == "not measured"


@pytest.mark.parametrize(("value", "met"), [(300.0, True), (300.1, False)])
def test_a_limit_includes_its_value(value: float, met: bool) -> None:
    row = Row("celery.rate", "work", "MB")
    assert a_run(ours=[value]).verdict(row, AtMost(300)) is met


def test_the_page_names_what_was_missed_and_its_reason() -> None:
    results = a_run(ours=[100], rabbitmq=[100], redis=[1])
    results.failures["backlog"] = "Traceback\nno broker runs"
    page = report.markdown(report.Run(results, Sizes(), [], {}, "make bench", 60.0), {"celery.rate": "Because."})
    assert "Celery solo worker, prefetch multiplier 8: Because." in page
    assert "backlog: could not be measured: no broker runs" in page


def test_row_keys_are_unique_and_belong_to_a_workload() -> None:
    keys = [row.key for row in ROWS]
    assert len(set(keys)) == len(keys)
    assert {key.partition(".")[0] for key in keys} == set(WORKLOADS)


def test_a_reason_for_an_unknown_row_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "reasons.toml"
    path.write_text('"publish.speed" = "typing error"\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"publish\.speed"):
        report.read_reasons(path)


def test_the_reasons_in_the_repository_are_valid() -> None:
    report.read_reasons(Path(__file__).with_name("reasons.toml"))
