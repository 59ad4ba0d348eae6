"""The records of long runs, and the page that is made from them."""

from __future__ import annotations

import re
import runpy
import subprocess
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from .runs import DEFECTS, Kind, Runs, commit, described, read, record

ROOT = Path(__file__).resolve().parents[2]
TOOL: dict[str, Any] = runpy.run_path(str(ROOT / "tools" / "site" / "reliability_page.py"))
DAY = date(2026, 1, 31)


def test_runs_of_a_command_add_up(tmp_path: Path) -> None:
    record(
        "faults", "make faults", 60.4, {"seeds": 2, "anomalies": 0}, {"kill -9": 3}, code="c", day=DAY, folder=tmp_path
    )
    found = ["SEED=7, point 1: lost"]
    record(
        "faults",
        "make faults",
        61,
        {"seeds": 3, "anomalies": 1},
        {"bit flip": 1},
        defects=found,
        code="c",
        day=DAY,
        folder=tmp_path,
    )
    record("faults", "make faults", 1, {"seeds": 1}, code="c", day=date(2026, 2, 1), folder=tmp_path)
    first, second = read("faults", tmp_path)
    assert (first.runs, first.seconds) == (2, 121)
    assert first.numbers == {"seeds": 5, "anomalies": 1}
    assert first.defects == found
    assert first.faults == {"kill -9": 3, "bit flip": 1}
    assert (second.runs, second.numbers) == (1, {"seeds": 1})


def test_time_is_clean_since_the_last_defect(tmp_path: Path) -> None:
    for day, anomalies in (DAY, 0), (DAY, 2), (DAY, 0), (DAY, 0), (date(2026, 2, 1), 0):
        record("faults", "make faults", 3600, {"anomalies": anomalies}, code="c", day=day, folder=tmp_path)
    runs = read("faults", tmp_path)
    assert [each.clean_seconds for each in runs] == [7200, 3600]
    assert TOOL["table"]("faults", [vars_of(each) for each in runs]).endswith("|5.0|2|3.0|\n")


def test_of_planted_bugs_the_newest_run_counts(tmp_path: Path) -> None:
    record("mutants", "make mutants", 60, {"planted": 30, "found": 29}, code="c", day=DAY, folder=tmp_path)
    record("mutants", "make mutants", 60, {"planted": 31, "found": 31}, code="c", day=DAY, folder=tmp_path)
    (runs,) = read("mutants", tmp_path)
    assert (runs.runs, runs.numbers) == (1, {"planted": 31, "found": 31})


def _record(folder: Path) -> None:
    record("fuzz", "make fuzz TARGET=url", 1, {"executions": 1}, code="c", day=DAY, folder=folder)


def test_concurrent_records_are_all_kept(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4) as pool:
        list(pool.map(_record, [tmp_path] * 40))
    (runs,) = read("fuzz", tmp_path)
    assert (runs.runs, runs.numbers) == (40, {"executions": 40})


def test_the_page_sums_days_and_has_each_number_and_fault() -> None:
    runs = [
        Runs("make faults", "0.1.0", DAY, 1, 5400, {"seeds": 1000}, {"kill -9": 2000}),
        Runs("make faults", "0.1.0", date(2026, 2, 1), 1, 5400, {"seeds": 500, "anomalies": 0}, {"bit flip": 7}),
    ]
    assert TOOL["table"]("faults", [vars_of(each) for each in runs]).splitlines() == [
        "|command|last run|hours|seeds|anomalies|clean hours|",
        "|---|---|---:|---:|---:|---:|",
        "|`make faults`|2026-02-01|3.0|1,500|0|3.0|",
    ]
    assert "|faults|kill -9 2,000, bit flip 7|" in TOOL["faults"]({"faults": [vars_of(each) for each in runs]})


def test_the_page_has_the_runs_since_the_last_anomaly_and_how_to_repeat_them(tmp_path: Path) -> None:
    for first_seed, anomalies in (1, 0), (11, 1), (21, 0), (31, 0):
        record(
            "faults",
            "make faults",
            3600,
            {"kills": 40, "seeds": 10, "anomalies": anomalies},
            points={"1": anomalies} if anomalies else {},
            exact=f"make faults SECONDS=60 SEED={first_seed} RUNS=10",
            code="abcd",
            first_seed=first_seed,
            day=DAY,
            folder=tmp_path,
        )
    (runs,) = read("faults", tmp_path)
    lines = [msgspec.to_builtins(runs)]
    assert TOOL["latest"](lines).splitlines() == [
        "|run|commit|first seed|hours|kills|seeds|anomalies|",
        "|---|---|---:|---:|---:|---:|---:|",
        "|since the last anomaly|||2.00|80|20|0|",
        "|`make faults SECONDS=60 SEED=31 RUNS=10`|abcd|31|1.00|40|10|0|",
        "|`make faults SECONDS=60 SEED=21 RUNS=10`|abcd|21|1.00|40|10|0|",
        "|`make faults SECONDS=60 SEED=11 RUNS=10`|abcd|11|1.00|40|10|1|",
    ]
    assert TOOL["points"](lines).splitlines()[0::2] == ["||point 1|not recorded|", "|anomalies|1|0|"]


def test_a_run_without_the_fields_is_not_among_those_that_can_be_repeated() -> None:
    assert TOOL["latest"]([vars_of(Runs("make faults", "0.1.0", DAY, 1, 60, {"seeds": 1}))]) == ""


def test_a_commit_is_that_of_the_checkout() -> None:
    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert commit().removesuffix("-dirty") == (head.stdout.strip() or "unknown")


@pytest.mark.parametrize("kind", get_args(Kind))
def test_each_defect_is_described(kind: Kind) -> None:
    for runs in read(kind):
        assert sum(runs.numbers.get(name, 0) for name in DEFECTS) == described(runs.defects), runs.command


def test_the_page_has_what_was_found() -> None:
    runs = Runs("make faults", "0.1.0", DAY, 1, 60, {"anomalies": 2}, defects=["SEED=7, point 1: a|b is lost"])
    assert TOOL["defects"]([vars_of(runs)]).splitlines()[2:] == ["|SEED=7, point 1: a&#124;b is lost|"]
    assert TOOL["defects"]([]) == ""


def test_what_replaces_a_removed_test_exists() -> None:
    for cell in (*TOOL["REPLACED"], *TOOL["REPLACED"].values()):
        for name in re.findall(r"`(\w+/[\w/]+)`", cell):
            assert (ROOT / "tests" / f"{name}.py").exists(), name


def vars_of(runs: Runs) -> dict[str, Any]:
    return dict(msgspec.to_builtins(runs))


def test_the_page_is_current() -> None:
    page = TOOL["PAGE"].read_text()
    assert TOOL["page"]() == page, "run: python tools/site/reliability_page.py"
    prose = [line for line in page.splitlines() if not line.startswith("|")]
    assert len(" ".join(prose).split()) <= 400
