"""The contract's points, the tests that decide them, and the bugs, planted or automatic, that these must find."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.__main__ import FAST, Mutant, mutants
from tests.mutants.automatic import TESTS, Survivor, explained

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


def test_the_page_names_the_most_specific_checks_of_each_point() -> None:
    modules = TOOL["checks"]()
    assert TOOL["most_specific"]({1: ["a", "b", "c", "d"], 2: ["a", "b"], 3: ["a"]}) == {
        1: ["b", "c", "d"],
        2: ["a", "b"],
        3: ["a"],
    }
    for match in TOOL["POINT"].finditer(TOOL["PAGE"].read_text()):
        named = re.findall(r"`([a-z_/]+/test_\w+)`", match[0])
        assert 2 <= len(named) <= 3
        assert set(named) <= set(modules[int(match["number"])])


def test_there_are_planted_bugs() -> None:
    assert len(mutants()) >= 30


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_a_planted_bug_names_fast_tests(mutant: Mutant) -> None:
    assert mutant.points
    for test in mutant.tests:
        assert test.startswith(FAST)
        assert (ROOT / test.split("::")[0]).exists()


@pytest.mark.parametrize("module", TESTS)
def test_a_module_that_is_mutated_has_tests(module: str) -> None:
    assert (ROOT / "kombu_opendata" / module).exists()
    assert all((ROOT / "tests" / test).exists() for test in TESTS[module])


@pytest.mark.parametrize(("survivor", "reason"), explained().items(), ids=lambda value: getattr(value, "function", ""))
def test_an_explained_mutant_is_of_code_that_exists(survivor: Survivor, reason: str) -> None:
    lines = {line.strip() for line in (ROOT / "kombu_opendata" / survivor.module).read_text().splitlines()}
    assert set(survivor.before.splitlines()) <= lines
    assert survivor.after != survivor.before
    assert reason.endswith(".")
