"""The public API is the one that the last commit has, and the one that the documentation names."""

from __future__ import annotations

import functools
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Not on the path where the wheel is tested.
TOOL: dict[str, Any] = runpy.run_path(str(ROOT / "tools/public_api.py"))


def test_a_change_of_the_public_api_is_part_of_the_commit() -> None:
    golden = (ROOT / "tests/golden/public_api.txt").read_text()
    assert TOOL["public_api"]() == golden, "run `python -m tools.public_api > tests/golden/public_api.txt`"


def test_the_documentation_names_the_public_modules() -> None:
    rows = re.findall(r"(?m)^\| `([\w.]+)` \|", (ROOT / "docs/public-api.md").read_text())
    assert sorted(rows) == sorted(TOOL["MODULES"])


class Base:
    x: int

    def call(self, name: str) -> None: ...


class Derived(Base):
    limit = 3

    @property
    def size(self) -> list[int]:
        return []

    @functools.cached_property
    def later(self) -> str:
        return ""

    @classmethod
    def make(cls, size: int = 3) -> Derived:
        return cls()


OF_DERIVED = ["  later: str", "  limit: int", "  make(cls, size: 'int' = 3) -> 'Derived'", "  size: list[int]"]
Base.__module__ = Derived.__module__ = "kombu_opendata.example"


@pytest.mark.parametrize(
    ("described", "lines"),
    [
        (set(), ["  call(self, name: 'str') -> 'None'", *OF_DERIVED, "  x: int"]),
        ({Base}, OF_DERIVED),
    ],
)
def test_a_class_lists_what_no_described_base_has(described: set[type], lines: list[str]) -> None:
    assert list(TOOL["members"](Derived, described)) == lines
