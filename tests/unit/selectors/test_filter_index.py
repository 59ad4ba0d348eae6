"""How selectors are filed: that the right ones are found is the property test's and the conformance table's."""

from __future__ import annotations

import pytest

from kombu_opendata.selectors import Selector, compile_selector
from kombu_opendata.selectors.filter_index import FilterIndex
from kombu_opendata.selectors.parser import parse
from kombu_opendata.selectors.required_conditions import Key, required_keys

INF = float("inf")


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("a = 'x' AND b > 3", [Key("text", "a", "x")]),
        ("b > 3 AND a IN ('x', 'y', 5, TRUE)", [Key("range", "b", (3, INF))]),
        ("a IN ('x', 5, TRUE)", [Key("text", "a", "x"), Key("number", "a", 5), Key("text", "a", "true")]),
        ("a = 'x' OR b = -5", [Key("text", "a", "x"), Key("number", "b", -5)]),
        ("a = 'x' OR b IS NULL", None),
        ("a LIKE 'x%'", [Key("prefix", "a", "x")]),
        ("a LIKE '%x'", [Key("suffix", "a", "x")]),
        ("a LIKE '_%'", [Key("exists", "a")]),
        ("a LIKE 'x'", [Key("text", "a", "x")]),
        ("topic(a, 'x.*.y')", [Key("prefix", "a", "x.")]),
        ("topic(a, 'x.#')", [Key("prefix", "a", "x")]),
        ("topic(a, '#')", [Key("exists", "a")]),
        ("a <> 'x'", [Key("exists", "a")]),
        ("NOT a = 'x'", [Key("exists", "a")]),
        ("NOT a > 5", [Key("range", "a", (-INF, 5))]),
        ("5 < a", [Key("range", "a", (5, INF))]),
        ("a BETWEEN -1 AND 2.5", [Key("range", "a", (-1, 2.5))]),
        ("a BETWEEN 'a' AND 'b'", [Key("exists", "a")]),
        ("a", [Key("text", "a", "true")]),
        ("NOT a", [Key("text", "a", "false")]),
        ("NOT (a OR b <> 'x')", [Key("text", "a", "false")]),
        ("NOT (a AND b)", [Key("text", "a", "false"), Key("text", "b", "false")]),
        ("a IS NOT NULL", [Key("exists", "a")]),
        ("a IS NULL", None),
        ("TRUE", None),
        ("FALSE", []),
        ("a + b > 5", None),
        ("a = b", [Key("exists", "a")]),
    ],
)
def test_keys(text: str, keys: list[Key] | None) -> None:
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
    assert group._answers is None


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
