"""Compiler of trees to functions.

Each condition has two functions: one returns True if the condition is *true*, the other if it is *false*. If both
return False, the condition is unknown. Three-valued logic results from the combination of these two-valued functions:
AND is true if all its parts are true, and false if any part is false; NOT swaps the two functions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from . import tree
from .language import MAX_LIKE_TEXT, MAX_TOPIC_TEXT, boolean_of, number_of, operation
from .like_match import compile_like, is_scan
from .topic_match import compile_topic

Headers: TypeAlias = Mapping[str, str]
Predicate: TypeAlias = Callable[[Headers], bool]

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
#: the operator that is true where this operator is false
OPPOSITES = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
#: the equivalent operator for exchanged operands
MIRRORED = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_NUMERIC = (tree.Number, tree.Negative, tree.Arithmetic)


def compile_condition(node: tree.Condition, truth: bool = True) -> Predicate:
    """Return a function that returns True if the condition is true or, with ``truth`` False, if it is false."""
    match node:
        case tree.Logical(operator, parts):
            functions = [compile_condition(part, truth) for part in parts]
            return _every(functions) if (operator == "AND") is truth else _some(functions)
        case tree.Not(part):
            return compile_condition(part, not truth)
        case tree.Compare(sign, left, right):
            return _compare(sign if truth else OPPOSITES[sign], left, right)
        case tree.Between(operand, low, high):
            both = tree.all_of([tree.Compare(">=", operand, low), tree.Compare("<=", operand, high)])
            return compile_condition(both, truth)
        case tree.In(operand, members):
            return _in(operand, members, truth)
        case tree.Like(operand, pattern, escape):
            return _text_test(operand, compile_like(pattern, escape), truth, MAX_LIKE_TEXT)
        case tree.Topic(header, pattern):
            return _text_test(header, compile_topic(pattern), truth, MAX_TOPIC_TEXT)
        case tree.IsNull(header):
            name = header.name
            return (lambda headers: name not in headers) if truth else (lambda headers: name in headers)
        case tree.Header(name):
            text = "true" if truth else "false"
            return lambda headers: headers.get(name) == text
        case tree.Boolean(value):
            return _always if value is truth else _never


def compile_text(node: tree.Node) -> Callable[[Headers], str | None]:
    """Return a function from headers to the text of the node's value; None for NULL, and for an unknown condition."""
    match node:
        case tree.Header(name):
            return lambda headers: headers.get(name)
        case tree.Text(value):
            return lambda headers: value
        case tree.Number() | tree.Negative() | tree.Arithmetic():
            calculate = _number(node)
            return lambda headers: None if (number := calculate(headers)) is None else str(number)
        case _:
            is_true, is_false = compile_condition(node), compile_condition(node, truth=False)
            return lambda headers: "true" if is_true(headers) else "false" if is_false(headers) else None


def most_steps(node: tree.Node) -> int:
    """Return the approximate maximum of Python steps for the evaluation of the node."""
    steps = 1
    match node:
        case tree.Like(_, pattern, escape):
            steps += MAX_LIKE_TEXT if is_scan(pattern, escape) else pattern.count("%")
        case tree.Topic(_, pattern):
            steps += pattern.count(".")
    return steps + sum(map(most_steps, tree.children(node)))


def _always(headers: Headers) -> bool:
    return True


def _never(headers: Headers) -> bool:
    return False


def _every(functions: list[Predicate]) -> Predicate:
    if len(functions) == 2:
        first, second = functions
        return lambda headers: first(headers) and second(headers)
    if len(functions) == 3:
        first, second, third = functions
        return lambda headers: first(headers) and second(headers) and third(headers)

    def every(headers: Headers) -> bool:
        for function in functions:  # noqa: SIM110 - a generator takes twice the time
            if not function(headers):
                return False
        return True

    return every


def _some(functions: list[Predicate]) -> Predicate:
    if len(functions) == 2:
        first, second = functions
        return lambda headers: first(headers) or second(headers)

    def some(headers: Headers) -> bool:
        for function in functions:  # noqa: SIM110 - a generator takes twice the time
            if function(headers):
                return True
        return False

    return some


# ---------------------------------------------------------------------- texts
def _text_test(operand: tree.Value, test: Callable[[str], bool], truth: bool, max_length: int) -> Predicate:
    """Return a test of a text of at most ``max_length`` characters; the condition is unknown for any other value."""
    if isinstance(operand, tree.Text):
        return _always if len(operand.value) <= max_length and test(operand.value) is truth else _never
    if not isinstance(operand, tree.Header):
        return _never
    name = operand.name

    def true(headers: Headers) -> bool:
        text = headers.get(name)
        return text is not None and len(text) <= max_length and test(text)

    def false(headers: Headers) -> bool:
        text = headers.get(name)
        return text is not None and len(text) <= max_length and not test(text)

    return true if truth else false


# ---------------------------------------------------------------------- comparisons
def _compare(sign: str, left: tree.Value, right: tree.Value) -> Predicate:
    if isinstance(right, tree.Header) and not isinstance(left, tree.Header):
        return _compare(MIRRORED[sign], right, left)
    apply = _OPERATORS[sign]
    if isinstance(left, tree.Header):
        if isinstance(right, tree.Text):
            return _with_text(left.name, sign, right.value)
        if isinstance(right, tree.Number):
            return _with_number(left.name, apply, right.value)
        if isinstance(right, tree.Boolean):
            return _with_boolean(left.name, sign, right.value)
        if isinstance(right, tree.Header):
            return _headers(left.name, apply, right.name)
    if isinstance(left, (tree.Header, *_NUMERIC)) and isinstance(right, _NUMERIC):
        return _numbers(apply, left, right)
    if isinstance(left, tree.Text) and isinstance(right, tree.Text):
        return _always if apply(left.value, right.value) else _never
    if isinstance(left, tree.Boolean) and isinstance(right, tree.Boolean) and sign in ("=", "<>"):
        return _always if apply(left.value, right.value) else _never
    return _never  # values that can't be compared


def _with_text(name: str, sign: str, value: str) -> Predicate:
    if sign == "=":
        return lambda headers: headers.get(name) == value
    apply = _OPERATORS[sign]

    def compare(headers: Headers) -> bool:
        text = headers.get(name)
        return text is not None and apply(text, value)

    return compare


def _with_number(name: str, apply: Callable[[Any, Any], bool], value: float) -> Predicate:
    def compare(headers: Headers) -> bool:
        text = headers.get(name)
        if text is None:
            return False
        number = number_of(text)
        return number is not None and apply(number, value)

    return compare


def _with_boolean(name: str, sign: str, value: bool) -> Predicate:
    if sign not in ("=", "<>"):
        return _never
    text = "true" if value is (sign == "=") else "false"
    return lambda headers: headers.get(name) == text


def _headers(left: str, apply: Callable[[Any, Any], bool], right: str) -> Predicate:
    """Compare two headers: as numbers if both are numbers, else as texts."""

    def compare(headers: Headers) -> bool:
        left_text, other = headers.get(left), headers.get(right)
        if left_text is None or other is None:
            return False
        first, second = number_of(left_text), number_of(other)
        return apply(left_text, other) if first is None or second is None else apply(first, second)

    return compare


def _numbers(apply: Callable[[Any, Any], bool], left: tree.Value, right: tree.Value) -> Predicate:
    first, second = _number(left), _number(right)

    def compare(headers: Headers) -> bool:
        left_value = first(headers)
        if left_value is None:
            return False
        other = second(headers)
        return other is not None and apply(left_value, other)

    return compare


def _number(node: tree.Value) -> Callable[[Headers], Any]:
    """Return a function from headers to the node's number, or to None if its value is not a number."""
    match node:
        case tree.Number(value):
            return lambda headers: value
        case tree.Header(name):
            return lambda headers: None if (text := headers.get(name)) is None else number_of(text)
        case tree.Negative(operand):
            positive = _number(operand)
            return lambda headers: None if (value := positive(headers)) is None else -value
        case tree.Arithmetic(sign, left, right):
            first, second, calculate = _number(left), _number(right), operation(sign)
            return lambda headers: calculate(first(headers), second(headers))
        case _:
            return lambda headers: None


# ---------------------------------------------------------------------- IN
def _in(operand: tree.Value, members: tuple[str | int | float | bool, ...], truth: bool) -> Predicate:
    if isinstance(operand, tree.Header):
        return _header_in(operand.name, members, truth)
    if isinstance(operand, _NUMERIC):
        return _number_in(operand, members, truth)
    return compile_condition(
        tree.any_of([tree.Compare("=", operand, tree.constant_node(member)) for member in members]), truth
    )


def _number_in(operand: tree.Value, members: tuple[str | int | float | bool, ...], truth: bool) -> Predicate:
    """Return a test that calculates the number once and looks it up in the list.

    Texts and booleans in the list can't be compared with a number, so IN is unknown instead of false.
    """
    numbers = frozenset(member for member in members if type(member) in (int, float))
    otherwise = None if any(type(member) not in (int, float) for member in members) else False
    calculate = _number(operand)

    def value(headers: Headers) -> bool | None:
        number = calculate(headers)
        if number is None:
            return None
        return True if number in numbers else otherwise

    return lambda headers: value(headers) is truth


def _header_in(name: str, members: tuple[str | int | float | bool, ...], truth: bool) -> Predicate:
    """Return a test of a header with one look-up for each type in the list: text, number, boolean."""
    texts = frozenset(member for member in members if isinstance(member, str))
    if len(texts) == len(set(members)):
        if truth:
            return lambda headers: headers.get(name) in texts
        return lambda headers: (text := headers.get(name)) is not None and text not in texts
    booleans = frozenset(member for member in members if isinstance(member, bool))
    numbers = frozenset(member for member in members if type(member) in (int, float))

    def value(headers: Headers) -> bool | None:
        text = headers.get(name)
        if text is None:
            return None
        number, boolean = number_of(text), boolean_of(text)
        if text in texts or (number is not None and number in numbers) or (boolean is not None and boolean in booleans):
            return True
        comparable = (not numbers or number is not None) and (not booleans or boolean is not None)
        return False if comparable else None

    return lambda headers: value(headers) is truth
