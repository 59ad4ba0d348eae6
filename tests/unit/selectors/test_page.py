"""docs/filters.md and docs/rfcs/0005-selectors.md say what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kombu_opendata.broker.model.argument_checks import parse
from kombu_opendata.errors import SelectorError
from kombu_opendata.selectors import compile_selector, language
from kombu_opendata.storage.operations.definitions import MAX_FILTER_BYTES

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "filters.md").read_text(encoding="utf-8")
RFC = (DOCS / "rfcs" / "0005-selectors.md").read_text(encoding="utf-8")


def test_every_filter_of_the_page_is_one() -> None:
    shown = [text for text in re.findall(r"(?m)^\| `([^`]+)` \|", PAGE) if text not in ("x-filter-mode", "any", "all")]
    shown += re.findall(r'"x-filter": "([^"]+)"', PAGE)
    assert len([text for text in shown if text != "x-filter"]) >= 10
    for text in shown:
        if text != "x-filter":
            compile_selector(text)


def test_the_error_is_as_shown() -> None:
    shown = re.search(r"(?s)```\n(queue 'audit'.*?)\n```", PAGE)
    assert shown is not None
    text = shown[1].splitlines()[1]
    with pytest.raises(SelectorError) as caught:
        parse("audit", {"x-filter": text})
    assert str(caught.value) == shown[1]


def test_the_explanation_is_as_shown() -> None:
    shown = re.search(r"(?s)```\n(false: .*?)\n```", PAGE)
    assert shown is not None
    text = shown[1].splitlines()[0].removeprefix("false: ")
    assert str(compile_selector(text).explain({"task": "billing.send", "priority": "1"})) == shown[1]


def test_an_explanation_is_the_same_from_json() -> None:
    found = compile_selector("a = 1 AND (b = 'x' OR c IS NULL)").explain({"a": "1"}).to_dict()
    assert json.loads(json.dumps(found)) == found


def test_the_bounds_are_as_the_pages_say() -> None:
    for page in (PAGE, RFC):
        for bound in (language.MAX_BYTES, language.MAX_DEPTH, language.MAX_TERMS):
            assert f"{bound:,}" in page
    for bound in (MAX_FILTER_BYTES, language.MAX_ARITHMETIC, language.MAX_NUMBER_LENGTH):
        assert f"{bound:,}" in RFC
    for word in language.KEYWORDS:
        assert word in RFC


def test_the_logic_is_as_its_tables_say() -> None:
    values = {"true": "t", "false": "f", "unknown": "u"}
    results = {"true": True, "false": False, "unknown": None}
    headers = {"t": "true", "f": "false"}
    rows = [re.findall(r"[a-z]+", line) for line in RFC.splitlines() if re.match(r"\| \*\*(true|false|unknown)", line)]
    assert len(rows) == 3
    for row in rows:
        left = values[row[0]]
        for place, right in enumerate(values.values()):
            assert compile_selector(f"{left} AND {right}").explain(headers).value is results[row[1 + place]]
            assert compile_selector(f"{left} OR {right}").explain(headers).value is results[row[5 + place]]
        assert compile_selector(f"NOT {values[row[8]]}").explain(headers).value is results[row[9]]
