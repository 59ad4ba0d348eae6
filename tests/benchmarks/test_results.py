"""The benchmark judges itself by these few lines of arithmetic, so they are tested."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import broker_cpu, machine, report
from .broker_cpu import Spent
from .record import Record
from .results import Results, percentile
from .targets import OURS, RABBITMQ, ROWS, Row, Target, targets_of
from .workloads import Sizes

ROW = Row("celery.rate", "work", "tasks/s", targets_of("≥ 1.25 rabbitmq; ≥ 4 redis"))


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


def test_each_target_is_judged_separately() -> None:
    results = a_run(ours=[200], rabbitmq=[100], redis=[100])
    assert report.verdict(ROW, results) == "yes, **no**"
    assert report.verdict(ROW, a_run(ours=[400], rabbitmq=[100], redis=[100])) == "yes"


def test_what_was_not_measured_is_not_met() -> None:
    assert report.verdict(ROW, a_run(ours=[200])) == "not measured"
    assert report.verdict(ROW, a_run(rabbitmq=[200], redis=[1])) == "not measured"


@pytest.mark.parametrize(("value", "met"), [(300.0, True), (300.1, False)])
def test_a_limit_includes_its_value(value: float, met: bool) -> None:
    row = Row("celery.rate", "work", "MB")
    assert a_run(ours=[value]).verdict(row, Target("≤", 300)) is met


@pytest.mark.parametrize(("ours", "met"), [(120.0, True), (121.0, False)])
def test_at_most_times_a_peer_is_judged_by_the_ratio_of_the_medians(ours: float, met: bool) -> None:
    target = Target("≤", 1.2, RABBITMQ)
    row = Row("celery.rate", "work", "ms", (target,))
    results = a_run(ours=[ours, 1.0, 999.0], rabbitmq=[100.0, 100.0, 1.0])
    assert results.verdict(row, target) is met
    assert a_run(ours=[ours]).verdict(row, target) is None
    assert report.cells(row, results)[-3:] == (
        f"{ours / 100:.2f} × RabbitMQ (0.01–999.00)",
        "≤ 1.2 × RabbitMQ",
        "yes" if met else "**no**",
    )


@pytest.mark.parametrize(
    ("count", "percent", "rank"),
    [
        (1, 50, 1),
        (1, 99.9, 1),
        (2, 50, 1),
        (3, 50, 2),
        (100, 99, 99),
        (1000, 99.9, 999),
        (1001, 99.9, 1000),
        (9, 100, 9),
    ],
)
def test_a_percentile_is_the_value_of_the_nearest_rank(count: int, percent: float, rank: int) -> None:
    assert percentile(list(range(count, 0, -1)), percent) == rank


def test_there_is_no_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_broker_cpu_is_that_between_the_first_start_and_the_last_end() -> None:
    assert broker_cpu.microseconds([Spent(1000, 1.0, 1.25), Spent(1000, 1.125, 1.5)]) == 250.0


def test_the_device_is_found_by_its_numbers() -> None:
    text = "   7 0 loop0 0 0 0 0 0 0 9 0 0 0 0\n 254 0 vda 5 1 2 1 3 1 11582424 48 0 1 6 1 8 40 14 63 3\n"
    assert machine.bytes_of_device(text, 254, 0) == 11582424 * 512
    assert machine.bytes_of_device(text, 0, 29) is None


def test_the_page_of_all_data_names_missed_targets_and_their_reasons() -> None:
    results = a_run(ours=[100], rabbitmq=[100], redis=[1])
    results.failures["backlog"] = "Traceback\nno broker runs"
    run = report.Run(results, Sizes(), {}, {})
    miss = f"- **Celery solo worker, prefetch multiplier 8**: {report.read_reasons()['celery.rate']}\n"
    page = report.data_page(run)
    assert miss in page
    assert "backlog: could not be measured: no broker runs" in page


def test_a_row_without_a_target_has_a_reason_if_rabbitmq_is_faster() -> None:
    for ours, count in ((100.0, 1), (400.0, 0)):
        results = Results()
        results.add("sizes.publish1MB", OURS, ours)
        results.add("sizes.publish1MB", RABBITMQ, 300.0)
        assert report.data_page(report.Run(results, Sizes(), {}, {})).count("**bodies of 1 MB: publish") == count


def test_the_rows_of_the_page_exist() -> None:
    assert set(report.MAIN_ROWS) <= {row.key for row in ROWS}


def test_earlier_samples_belong_to_rows() -> None:
    record = Record(Path(__file__).parents[2] / "docs" / "benchmarks" / "samples.json")
    unknown = {key for key, _series in record.results({}).samples} - {row.key for row in ROWS}
    assert not unknown


def test_each_row_that_misses_its_target_has_a_reason() -> None:
    record = Record(Path(__file__).parents[2] / "docs" / "benchmarks" / "samples.json")
    assert "The reason is not known" not in report.data_page(report.Run.of(record, Sizes(), {}, {}))


def test_a_reason_for_an_unknown_row_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "reasons.toml"
    path.write_text('"publish.speed" = "typing error"\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"publish\.speed"):
        report.read_reasons(path)
