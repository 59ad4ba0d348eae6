"""How selectors are filed: that the right ones are found is the property test's and the conformance table's."""

from __future__ import annotations

import pytest

from kombu_opendata.selectors import Selector, compile_selector
from kombu_opendata.selectors.filter_index import FilterIndex
from kombu_opendata.selectors.parser import parse
from kombu_opendata.selectors.required_conditions import LookupKey, required_keys

INF = float("inf")


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("a = 'x' AND b > 3", [LookupKey("text", "a", "x")]),
        ("b > 3 AND a IN ('x', 'y', 5, TRUE)", [LookupKey("range", "b", (3, INF))]),
        (
            "a IN ('x', 5, TRUE)",
            [LookupKey("text", "a", "x"), LookupKey("number", "a", 5), LookupKey("text", "a", "true")],
        ),
        ("a = 'x' OR b = -5", [LookupKey("text", "a", "x"), LookupKey("number", "b", -5)]),
        ("a = 'x' OR b IS NULL", None),
        ("a LIKE 'x%'", [LookupKey("prefix", "a", "x")]),
        ("a LIKE '%x'", [LookupKey("suffix", "a", "x")]),
        ("a LIKE '_%'", [LookupKey("exists", "a")]),
        ("a LIKE 'x'", [LookupKey("text", "a", "x")]),
        ("topic(a, 'x.*.y')", [LookupKey("prefix", "a", "x.")]),
        ("topic(a, 'x.#')", [LookupKey("prefix", "a", "x")]),
        ("topic(a, '#')", [LookupKey("exists", "a")]),
        ("a <> 'x'", [LookupKey("exists", "a")]),
        ("NOT a = 'x'", [LookupKey("exists", "a")]),
        ("NOT a > 5", [LookupKey("range", "a", (-INF, 5))]),
        ("5 < a", [LookupKey("range", "a", (5, INF))]),
        ("a BETWEEN -1 AND 2.5", [LookupKey("range", "a", (-1, 2.5))]),
        ("a BETWEEN 'a' AND 'b'", [LookupKey("exists", "a")]),
        ("a", [LookupKey("text", "a", "true")]),
        ("NOT a", [LookupKey("text", "a", "false")]),
        ("NOT (a OR b <> 'x')", [LookupKey("text", "a", "false")]),
        ("NOT (a AND b)", [LookupKey("text", "a", "false"), LookupKey("text", "b", "false")]),
        ("a IS NOT NULL", [LookupKey("exists", "a")]),
        ("a IS NULL", None),
        ("TRUE", None),
        ("FALSE", []),
        ("a + b > 5", None),
        ("a = b", [LookupKey("exists", "a")]),
    ],
)
def test_keys(text: str, keys: list[LookupKey] | None) -> None:
    costs = {"text": 1.0, "number": 1.0, "prefix": 2.0, "suffix": 2.0, "range": 2.5, "exists": 9.0}
    assert required_keys(parse(text), lambda key: costs[key.kind]) == keys


def test_what_all_have_in_common_is_not_what_they_are_filed_under() -> None:
    index = FilterIndex()
    for number in range(100):
        index.add(f"{number}", compile_selector(f"exchange = 'celery' AND task = 'job{number}'"))
    slot = index._headers["task"]
    assert len(slot.texts) >= 99
    assert index.matching({"exchange": "celery", "task": "job7"}) == ["7"]


def counted(text: str, asked: list[str]) -> Selector:
    """A selector that notes when it is evaluated."""
    selector = compile_selector(text)
    inner = selector.matches
    copy = Selector(selector.condition, text)
    copy.matches = lambda headers: asked.append(text) is None and inner(headers)  # type: ignore[func-returns-value]
    return copy


def test_only_what_may_match_is_evaluated() -> None:
    asked: list[str] = []
    index = FilterIndex()
    for number in range(1_000):
        text = [f"task = 'job{number}' AND a > 1", f"n BETWEEN {number} AND {number + 1}", f"task LIKE '%.{number}'"]
        index.add(f"{number}", counted(text[number % 3], asked))
    assert index.matching({"task": "job300", "n": "301", "a": "5"}) == ["300", "301"]
    assert len(asked) <= 4


def test_answers_for_few_headers_are_remembered() -> None:
    asked: list[str] = []
    index = FilterIndex()
    for number in range(20):
        index.add(f"{number}", counted(f"kind <> 'k{number}'", asked))
    first = index.matching({"kind": "k7", "id": "1"})
    assert (len(first), len(asked)) == (19, 20)
    assert index.matching({"kind": "k7", "id": "2"}) == first
    assert len(asked) == 20
    index.remove("3")
    assert "3" not in index.matching({"kind": "k7"})
    index.add("3", counted("kind = 'k7'", asked))
    assert "3" in index.matching({"kind": "k7"})


def test_nothing_is_remembered_of_headers_that_are_never_the_same() -> None:
    index = FilterIndex()
    for number in range(10):
        index.add(f"{number}", compile_selector(f"id <> '{number}'"))
    for number in range(2_000):
        assert len(index.matching({"id": f"{number}"})) == (9 if number < 10 else 10)
    index.matching({"id": "x" * 60_000})
    (group,) = index._headers["id"].existence._groups
    assert group._results is None


def test_an_index_is_empty_again() -> None:
    index = FilterIndex()
    texts = [
        "a = 'x'",
        "a LIKE 'x%'",
        "a LIKE '%x'",
        "a > 5",
        "a = 5",
        "a <> 'x'",
        "a IS NULL",
        "FALSE",
        "a = 'x' OR b = 1",
    ]
    for text in texts:
        index.add(text, compile_selector(text))
        index.add(text, compile_selector(text))
    assert len(index) == len(texts)
    for text in texts:
        index.remove(text)
        index.remove(text)
    assert not index
    assert not index._headers
    assert index.matching({"a": "x"}) == []


def test_ranges_that_overlap_a_lot_are_still_right() -> None:
    index = FilterIndex()
    for number in range(500):
        index.add(f"{number}", compile_selector(f"n > {number} AND m = {number}"))
        index.add(f"r{number}", compile_selector(f"n > {number}"))
    assert sorted(index.matching({"n": "3", "m": "2"})) == ["2", "r0", "r1", "r2"]


def test_a_value_that_is_named_twice_is_filed_once() -> None:
    index = FilterIndex()
    index.add("q", compile_selector("a IN ('x', 'x', 'y')"))
    assert index.matching({"a": "x"}) == ["q"]
    index.remove("q")
    assert not index.matching({"a": "x"})
