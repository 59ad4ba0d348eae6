"""Selectors against the table of conformance.txt, evaluated, matched, explained and filed in an index."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kombu_opendata.selectors import compile_selector
from kombu_opendata.selectors.filter_index import FilterIndex
from kombu_opendata.selectors.parser import parse
from kombu_opendata.selectors.tree import text_of

RESULTS = {"T": True, "F": False, "U": None}


def rows() -> list[tuple[str, dict[str, str], bool | None]]:
    """Selector, headers, result."""
    found = []
    headers: dict[str, str] = {}
    for line in Path(__file__).with_name("conformance.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            result, text, given = line.split(" | ") if not line.endswith(" |") else (*line[:-2].split(" | "), "")
            headers = json.loads(given) if given else headers
            found.append((text, headers, RESULTS[result]))
    return found


ROWS = rows()


def test_the_table_is_long_enough() -> None:
    assert len({(text, str(headers)) for text, headers, _result in ROWS}) >= 300
    assert {result for _text, _headers, result in ROWS} == {True, False, None}


@pytest.mark.parametrize(("text", "headers", "result"), ROWS, ids=[text for text, _headers, _result in ROWS])
def test_row(text: str, headers: dict[str, str], result: bool | None) -> None:
    selector = compile_selector(text)
    assert selector.explain(headers).value is result
    assert selector.matches(headers) is (result is True)
    assert selector.explain(headers).value is result
    assert compile_selector(f"NOT ({text})").explain(headers).value is (None if result is None else not result)
    assert parse(text_of(selector.condition)) == selector.condition
    index = FilterIndex()
    index.add("it", selector)
    assert index.matching(headers) == (["it"] if result else [])
    assert selector.names == {name for name in selector.names if text.find(name) >= 0 or '"' in text}
