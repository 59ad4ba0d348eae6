"""The contract's points, the tests that decide them, and the planted bugs that break them."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.__main__ import FAST, Mutant, mutants

ROOT = Path(__file__).resolve().parents[2]
TOOL: dict[str, Any] = runpy.run_path(str(ROOT / "tools" / "site" / "contract_page.py"))


def test_the_page_is_current() -> None:
    assert TOOL["page"]() == TOOL["PAGE"].read_text(), "run: python tools/site/contract_page.py"
    assert len(TOOL["PAGE"].read_text().splitlines()) <= 60


def test_each_point_has_checks_and_two_planted_bugs() -> None:
    numbers = TOOL["points"]()
    assert numbers == list(range(1, len(numbers) + 1))
    assert sorted(TOOL["checks"]()) == numbers
    assert sorted(TOOL["mutants"]()) == numbers
    assert [number for number, count in TOOL["mutants"]().items() if count < 2] == []


def test_there_are_planted_bugs() -> None:
    assert len(mutants()) >= 30


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_a_planted_bug_names_fast_tests(mutant: Mutant) -> None:
    assert mutant.points
    for test in mutant.tests:
        assert test.startswith(FAST)
        assert (ROOT / test.split("::")[0]).exists()
