"""What is no selector: refused with the place, whatever it is, and soon."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from kombu_opendata.errors import RequestError, SelectorError, from_wire
from kombu_opendata.selectors import compile_selector
from kombu_opendata.selectors.language import MAX_ARITHMETIC, MAX_BYTES, MAX_DEPTH, MAX_TERMS

#: selector, column, what the error says
REFUSED = [
    ("", 1, "the filter is empty"),
    (" \t\n", 1, "the filter is empty"),
    ("a = 1 AND", 10, "expected a header, a constant or a condition, but the filter ends"),
    ("a =", 4, "but the filter ends"),
    ("NOT", 4, "but the filter ends"),
    ("= 1", 1, "found ="),
    ("a b", 3, "expected an operator, AND, OR or the end, found b"),
    ("a = 1 2", 7, "found 2"),
    ("a = 'b' 'c'", 9, "found 'c'"),
    ("a == 1", 4, "found ="),
    ("a ! b", 3, "found !"),
    ("a = 1;", 6, "found ;"),
    ("a = 1 -- comment", 7, "a filter can't have comments"),
    ("a = /* comment */ 1", 5, "found /"),
    ("a[1] = 2", 2, "must be in double quotes"),
    ("a.b = 1", 2, "with dots must be in double quotes"),
    ("`a` = 1", 1, "must be in double quotes"),
    ("a#b = 1", 2, "must be in double quotes"),
    (":a = 1", 1, "must be in double quotes"),
    ("a = 'x", 5, "the text constant has no closing '"),
    ("a = 'x''", 5, "the text constant has no closing '"),
    ('"a = 1', 1, 'the header name has no closing "'),
    ("a = 'x' AND b = \"", 17, 'the header name has no closing "'),
    ("(a = 1", 1, "this ( is never closed"),
    ("a = 1)", 6, "this ) closes nothing"),
    ("()", 2, "found )"),
    ("a = (1, 2)", 7, "found ,"),
    ("5", 1, "this is a value; expected a condition"),
    ("'x'", 1, "this is a value"),
    ("a = 1 AND b + 1", 11, "this is a value"),
    ("NOT 5", 5, "this is a value"),
    ("a < b < c", 7, "expected AND, OR or the end, found <"),
    ("(a = 1) = (b = 1)", 2, "this is a condition"),
    ("a + (b = 1) > 1", 6, "this is a condition"),
    ("a = NOT b", 5, "expected a header, a constant or a condition, found NOT"),
    ("a IN (1) IN (2)", 10, "expected AND, OR or the end, found IN"),
    ("a = NULL", 5, "use IS NULL"),
    ("NULL", 1, "use IS NULL"),
    ("a IN (NULL)", 7, "expected a constant, found NULL"),
    ("a IS 5", 6, "expected NULL or NOT NULL"),
    ("a IS TRUE", 6, "expected NULL or NOT NULL"),
    ("a IS NOT", 9, "NULL or NOT NULL, but the filter ends"),
    ("5 IS NULL", 1, "only a header can be NULL"),
    ("a + 1 IS NULL", 1, "only a header can be NULL"),
    ("a IN 'x'", 6, "( and a list of constants"),
    ("a IN ()", 7, "a constant"),
    ("a IN ('x',)", 11, "a constant"),
    ("a IN ('x' 'y')", 11, "a comma or )"),
    ("a IN (b)", 7, "a constant"),
    ("a IN ('x'", 10, "a comma or ), but the filter ends"),
    ("a IN (-'x')", 8, "a number"),
    ("a IN (- - 1)", 9, "a number"),
    ("a BETWEEN 1", 12, "expected AND and the upper bound of BETWEEN, but the filter ends"),
    ("a BETWEEN 1 OR 2", 13, "expected AND and the upper bound of BETWEEN, found OR"),
    ("a BETWEEN 1, 2", 12, "found ,"),
    ("a LIKE b", 8, "a text constant in single quotes"),
    ("a LIKE 5", 8, "a text constant in single quotes"),
    ("a LIKE 'x' ESCAPE", 18, "a text constant in single quotes, but the filter ends"),
    ("a LIKE 'x' ESCAPE ''", 19, "the escape must be one character"),
    ("a LIKE 'x' ESCAPE 'ab'", 19, "the escape must be one character"),
    ("a LIKE 'x!' ESCAPE '!'", 8, "must be followed by %, _ or !"),
    ("a LIKE '!x' ESCAPE '!'", 8, "must be followed by %, _ or !"),
    ("a ESCAPE 'x'", 3, "found ESCAPE"),
    ("upper(a) = 'X'", 1, "there is no function upper"),
    ("date(a) = 'X'", 1, "there is no function date"),
    ("a = topic(b, 'c')", 5, "this is a condition"),
    ("(a = 1 AND (b", 12, "this ( is never closed"),
    ("(topic(a, 'b'", 14, "), but the filter ends"),
    ("a NOT 5", 7, "IN, LIKE or BETWEEN"),
    ("a = ((1) AND b)", 7, "this is a value"),
    ("topic(a)", 8, "a comma"),
    ("topic()", 7, "a header's name"),
    ("topic('a', 'b')", 7, "a header's name"),
    ("topic(a, b)", 10, "a text constant in single quotes"),
    ("topic(a, 'b', 'c')", 13, ")"),
    ("topic(a, 'b'", 13, "), but the filter ends"),
    ("a = 010", 5, "an integer can't have a leading zero"),
    ("a = 5abc", 6, "found abc"),
    ("a = 1_000", 6, "found _000"),
    ("a = 5L", 6, "found L"),
    ("a = 0x", 5, "0x"),
    ("a = 0xg", 5, "0xg"),
    ("a = 1e", 5, "1e is not a number"),
    ("a = 18446744073709551616", 5, "the number is too large"),
    ("a = 1e309", 5, "the number is too large"),
    ("a = .", 5, "unexpected dot"),
    ("x'12' = a", 2, "found '12'"),
    ("n'x' = a", 2, "found 'x'"),
    ("a i\u017f null", 3, "found i\u017f"),
    ("CASE WHEN a THEN b END", 6, "found WHEN"),
    ("a = 1 UNION SELECT 1", 7, "found UNION"),
    ("a = '\0'", 6, "the character U+0000"),
    ("a\0 = 1", 2, "the character U+0000"),
    ("a = '\ud800'", 6, "the character U+D800"),
]


@pytest.mark.parametrize(("text", "column", "what"), REFUSED, ids=[text for text, _column, _what in REFUSED])
def test_refused(text: str, column: int, what: str) -> None:
    with pytest.raises(SelectorError) as caught:
        compile_selector(text)
    error = caught.value
    assert what in error.text
    if text.strip():
        assert (error.line, error.column) == (1, column)
    assert error.caret.splitlines()[-1].strip() == "^"
    assert "lark" not in error.text.lower()
    again = from_wire(error.code, error.text, error.values)
    assert (type(again), again.text, again.values) == (SelectorError, error.text, error.values)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_place_in_several_lines() -> None:
    text = "task = 'x'\r\n  AND (priority > 3\n  OR\tpriority <)\n AND b = 1"
    with pytest.raises(SelectorError) as caught:
        compile_selector(text)
    error = caught.value
    assert str(error) == (
        "line 3, column 16: expected a header, a constant or a condition, found )\n  OR priority <)\n               ^"
    )
    assert error.line == 3
    assert error.column == 16


def test_of_a_long_line_a_part_is_shown() -> None:
    text = "a = 1 OR " * 50 + "b c" + " OR a = 1" * 50
    with pytest.raises(SelectorError) as caught:
        compile_selector(text)
    line, caret = caught.value.caret.splitlines()
    assert len(line) < 130
    assert line[caret.index("^")] == "c"
    assert (line[0], line[-1]) == ("…", "…")


HOSTILE = {
    "parentheses": "(" * 8_000 + "a" + ")" * 8_000,
    "open parentheses": "(" * 16_000,
    "NOT": "NOT " * 4_000 + "a",
    "signs": "a = " + "- " * 8_000 + "1",
    "both": "NOT (" * 3_000 + "a" + ")" * 3_000,
    "terms": "a = 1 OR " * 1_800 + "a",
    "sums": "a = 1" + " + 1" * 3_000,
    "long text": "a = '" + "x" * MAX_BYTES + "'",
    "long in bytes": "a = '" + "☀" * (MAX_BYTES // 2) + "'",
    "number": "a = " + "9" * 16_000,
    "hex": "a = 0x" + "f" * 16_000,
    "exponent": "a = 1e" + "9" * 16_000,
    "semicolons": ";" * 16_000,
    "quotes": "a = " + "'" * 16_001,
    "double quotes": '"' * 16_001,
    "words": "a " * 8_000,
    "NUL": "\0" * 16_000,
    "dots": "." * 16_000,
    "IN IN": "a IN " * 3_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_are_refused(text: str) -> None:
    with pytest.raises(SelectorError):
        compile_selector(text)


def test_the_bounds_are_exact() -> None:
    for opening, closing in (("(", ")"), ("NOT ", ""), ("NOT (", ")")):
        depth = MAX_DEPTH // (2 if opening == "NOT (" else 1)
        compile_selector(opening * depth + "a" + closing * depth)
        with pytest.raises(SelectorError, match=f"nested more than {MAX_DEPTH} levels"):
            compile_selector(opening * (depth + 1) + "a" + closing * (depth + 1))
    compile_selector(" AND ".join("(((a)))" for _ in range(MAX_TERMS)))
    with pytest.raises(SelectorError, match=f"more than {MAX_TERMS} headers"):
        compile_selector(" AND ".join("(((a)))" for _ in range(MAX_TERMS + 1)))
    compile_selector("a = 1" + "+ 1" * MAX_ARITHMETIC)
    with pytest.raises(SelectorError, match=f"more than {MAX_ARITHMETIC} arithmetic"):
        compile_selector("a = 1" + "+ 1" * (MAX_ARITHMETIC + 1))
    compile_selector("a = '" + "x" * (MAX_BYTES - 6) + "'")
    with pytest.raises(SelectorError, match=f"has {MAX_BYTES + 1} bytes; the limit is {MAX_BYTES}"):
        compile_selector("a = '" + "x" * (MAX_BYTES - 5) + "'")
    assert compile_selector("a IN (" + ", ".join(f"'{n}'" for n in range(1_500)) + ")").matches({"a": "1499"})


@pytest.mark.parametrize("given", [None, 5, b"a = 1", ["a"]])
def test_what_is_no_text(given: object) -> None:
    with pytest.raises(RequestError, match="a filter must be a str, not"):
        compile_selector(given)  # type: ignore[arg-type]


def test_the_parser_is_imported_for_the_first_filter_only() -> None:
    """A broker without filters does not pay for it, and a client never does."""
    program = (
        "import sys, kombu_opendata.broker.process.server, kombu_opendata.transport\n"
        "import kombu_opendata.client.session.broker_connection\n"
        "from kombu_opendata.selectors import compile_selector\n"
        "assert not [name for name in sys.modules if 'lark' in name]\n"
        "compile_selector('a = 1')\n"
        "assert 'lark' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    client = (
        "import sys, kombu_opendata.transport, kombu_opendata.client.session.broker_connection\n"
        "assert not [name for name in sys.modules if name.startswith('kombu_opendata.selectors.parser')]\n"
    )
    subprocess.run([sys.executable, "-c", client], check=True, timeout=60)
