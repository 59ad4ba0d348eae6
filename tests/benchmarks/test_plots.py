"""The pictures name what they show, in both variants, and depend on nothing but the samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import report
from .curve_rows import CURVES
from .results import Results
from .targets import ALWAYS, OURS, RABBITMQ
from .workloads import QUICK, Sizes


@pytest.fixture
def results() -> Results:
    results = Results()
    for name, value in ((OURS, 9_000.0), (RABBITMQ, 4_000.0), (ALWAYS, 1_500.0)):
        results.add("consume.rate", name, value)
    for size in (0, 1_000, 1_000_000):
        for value in (100.0, 120.0):
            results.add_point("backlog", "publish", size, value)
    return results


def draw(results: Results, folder: Path) -> dict[str, str]:
    from . import plots

    plots.draw(results, folder)
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def test_both_variants_name_the_brokers_the_values_and_the_units(results: Results, tmp_path: Path) -> None:
    drawn = draw(results, tmp_path / "page")
    for variant in ("light", "dark"):
        compared, curve = drawn.pop(f"compared-{variant}.svg"), drawn.pop(f"curve-backlog-{variant}.svg")
        for text in ("Kombu consume + ack", "ours", "RabbitMQ", "Redis always", "9,000", "msg/s"):
            assert f">{text}" in compared
        for text in ("publish, 8 processes", "msg/s", "messages waiting", "0", "1,000", "1M"):
            assert f">{text}" in curve
    assert not drawn


def test_each_variant_has_its_colours(results: Results, tmp_path: Path) -> None:
    from . import plots

    drawn = draw(results, tmp_path / "page")
    for name, text in drawn.items():
        own, other = plots.THEMES if name.endswith("-light.svg") else reversed(plots.THEMES)
        for colour in ("text", "lines", "ours"):
            assert getattr(own, colour) in text
            assert getattr(other, colour) not in text


def test_the_same_samples_give_the_same_bytes(results: Results, tmp_path: Path) -> None:
    assert draw(results, tmp_path / "first") == draw(results, tmp_path / "again")


def test_pictures_of_an_earlier_run_are_removed(results: Results, tmp_path: Path) -> None:
    draw(results, tmp_path / "page")
    results.points.clear()
    assert sorted(draw(results, tmp_path / "page")) == ["compared-dark.svg", "compared-light.svg"]


@pytest.mark.parametrize("sizes", [Sizes(), QUICK])
def test_each_curve_has_its_sizes_in_order(sizes: Sizes) -> None:
    for curve in CURVES:
        found = getattr(sizes, f"curve_{curve.key}")
        assert len(found) > 1
        assert sorted(set(found)) == list(found)


def test_the_page_shows_each_picture_that_was_drawn(results: Results, tmp_path: Path) -> None:
    from . import plots

    run = report.Run(results, Sizes(), {}, {})
    page = report.page(run, plots.draw(results, tmp_path / "benchmarks"))
    for path in (tmp_path / "benchmarks").iterdir():
        assert f'"benchmarks/{path.name}"' in page
    assert "| 1,000,000 | 110 msg/s |" in report.data_page(run)
