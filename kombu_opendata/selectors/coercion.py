"""Conversion of header texts to the type of the other operand (docs/rfcs/0005-selectors.md)."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import lru_cache

from .language import INTEGER_LIMIT, MAX_NUMBER_LENGTH

Number = int | float

_INTEGER = re.compile(r"[+-]?[0-9]+").fullmatch
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?").fullmatch
_INFINITE = float("inf")


def number_of(text: str) -> Number | None:
    """Return a text as a number; None if it is not one."""
    return _number_of(text) if len(text) <= MAX_NUMBER_LENGTH else None


@lru_cache(maxsize=4096)
def _number_of(text: str) -> Number | None:
    if _INTEGER(text):
        return bounded(int(text))
    return bounded(float(text)) if _DECIMAL(text) else None


def bounded(value: Number) -> Number | None:
    """Return the value if it is in range: an integer within ±2^64, or a finite double."""
    limit = INTEGER_LIMIT if type(value) is int else _INFINITE
    return value if -limit < value < limit else None


def boolean_of(text: str) -> bool | None:
    """Return a text as a boolean; None if it is not one."""
    return True if text == "true" else False if text == "false" else None


def _divide(left: Number, right: Number) -> Number | None:
    """Return the quotient; of two integers an integer, truncated towards zero as in Java.

    None for a division by zero.
    """
    if not right:
        return None
    if type(left) is int and type(right) is int:
        quotient = abs(left) // abs(right)
        return quotient if (left < 0) == (right < 0) else -quotient
    return left / right


_OPERATIONS: dict[str, Callable[[Number, Number], Number | None]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": _divide,
}  # fmt: skip


def operation(sign: str) -> Callable[[Number | None, Number | None], Number | None]:
    """Return an arithmetic operator over numbers and NULL. A result out of range is NULL."""
    apply = _OPERATIONS[sign]

    def calculate(left: Number | None, right: Number | None) -> Number | None:
        if left is None or right is None:
            return None
        try:
            result = apply(left, right)
        except OverflowError:
            return None
        return None if result is None else bounded(result)

    return calculate
