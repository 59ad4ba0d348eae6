"""The work of filters: counted, not timed. What a filter and a message may have bounds how long the broker takes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from kombu_opendata.errors import SelectorError
from kombu_opendata.selectors import compile_selector
from kombu_opendata.selectors.language import MAX_BYTES, MAX_LIKE_TEXT, MAX_SCANS, MAX_TERMS, MAX_TOPIC_TEXT
from kombu_opendata.selectors.topic_match import compile_topic


def steps(work: Callable[[], object]) -> int:
    """How many lines of Python run; each uses numbers and texts of a bounded size."""
    count = 0

    def trace(_frame: Any, _event: str, _argument: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def lines_of(filter: str, headers: dict[str, str]) -> int:
    matches = compile_selector(filter).matches
    return steps(lambda: matches(headers))


#: filters as expensive as the language allows, by what they make expensive
FILTERS = {
    "topic": " OR ".join(f"topic(h,'#.a.#.b{number}')" for number in range(500)),
    "topic of many parts": f"topic(h, '{'#.a.' * 4000}b')",
    "like": " OR ".join(f"h LIKE '%a_a{number}%'" for number in range(MAX_SCANS)),
    "like of many parts": f"h LIKE '{'%a' * 8000}b'",
    "in": f"{'+'.join(['h'] * 90)} IN ({','.join(['1'] * 7500)})",
    "terms": " OR ".join(["h = 'no'"] * (MAX_TERMS // 2)),
}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("text", ["a." * 32_000, "a" * 65_000, "a" * MAX_LIKE_TEXT, "a." * 127, "1"])
def test_an_evaluation_is_bounded(name: str, text: str) -> None:
    assert len(FILTERS[name]) <= MAX_BYTES
    assert lines_of(FILTERS[name], {"h": text}) < 60_000


def test_a_longer_text_takes_no_longer() -> None:
    for filter in ("topic(h, '#.a.#.b')", "h LIKE '%a_b%'", "h NOT LIKE '%a_b%'"):
        assert lines_of(filter, {"h": "a." * 32_000}) < 20


def test_like_and_topic_are_unknown_for_texts_that_are_too_long() -> None:
    longest, too_long = "x" * MAX_LIKE_TEXT, "x" * (MAX_LIKE_TEXT + 1)
    for condition in ("h LIKE 'x%'", "h NOT LIKE 'y%'", "h LIKE '%x_x%'"):
        matches = compile_selector(condition).matches
        assert (matches({"h": longest}), matches({"h": too_long})) == (True, False)
        assert compile_selector(condition).explain({"h": too_long}).value is None
    longest, too_long = "x" * MAX_TOPIC_TEXT, "x" * (MAX_TOPIC_TEXT + 1)
    matches = compile_selector("topic(h, '#')").matches
    assert (matches({"h": longest}), matches({"h": too_long})) == (True, False)
    assert not compile_selector("NOT topic(h, 'y')").matches({"h": too_long})


def test_the_number_of_scans_is_bounded() -> None:
    scan = "h LIKE '%a_%'"
    compile_selector(" OR ".join([scan] * MAX_SCANS))
    with pytest.raises(SelectorError, match=f"more than {MAX_SCANS} LIKE patterns with _ between two %"):
        compile_selector(" OR ".join([scan] * (MAX_SCANS + 1)))
    others = [r"h LIKE '%a\_%' ESCAPE '\'", "h LIKE 'a_%'", "h LIKE '%_a'", "h LIKE 'a_a'"]
    compile_selector(" OR ".join(others * MAX_SCANS))


def test_many_topic_patterns_read_a_key_once() -> None:
    """As a topic exchange does with a key that many of its patterns might match."""
    patterns = [compile_topic(f"#.a.#.b{number}") for number in range(100)]
    key = ".".join(["a"] * 127)
    first = steps(lambda: patterns[0](key))
    assert steps(lambda: [matches(key) for matches in patterns]) < 15 * first


def test_an_explanation_evaluates_each_part_once() -> None:
    """Not each part again for each level above it."""
    flat = " OR ".join(f"h LIKE '%a_{number}%'" for number in range(MAX_SCANS))
    nested = f"{'NOT (' * 10}{flat}{')' * 10}"
    headers = {"h": "a" * MAX_LIKE_TEXT}
    once, often = compile_selector(flat), compile_selector(nested)
    assert steps(lambda: often.explain(headers)) < 2 * steps(lambda: once.explain(headers))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("n + 1 IN (3, 4)", True), ("n + 1 IN (5)", False), ("n + 1 NOT IN (5)", True),
        ("n + 1 NOT IN (5, 'x')", False),
        ("n + 1 IN (3, 'x')", True), ("n + 1 IN (3.0)", True), ("missing + 1 NOT IN (5)", False), ("3 IN (3)", True),
    ],
)  # fmt: skip
def test_a_calculated_number_in_a_list(condition: str, expected: bool) -> None:
    assert compile_selector(condition).matches({"n": "2"}) is expected
