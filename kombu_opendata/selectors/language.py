"""Reserved words, tokens and limits of the filter language, and conversion of headers' texts to numbers and booleans.

docs/rfcs/0005-selectors.md describes them. This module does not import the parser.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import lru_cache

#: reserved words, in any case
KEYWORDS = frozenset({"AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"})
#: a header name that needs no quotes, as in JMS: letters, digits, ``_`` and ``$``, not beginning with a digit
IDENTIFIER = r"[^\W\d][\w$]*|\$[\w$]*"
INTEGER = r"0|[1-9][0-9]*"
HEX = r"0[xX][0-9a-fA-F]+"
DECIMAL = r"(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+"

#: limit for the size of a user's filter
MAX_BYTES = 16_384
#: limit for the headers and constants of a filter; the list of an IN counts as one
MAX_TERMS = 500
#: limit for nested parentheses, NOTs and signs; functions over the tree are recursive
MAX_DEPTH = 24
#: limit for + - * / and signs
MAX_ARITHMETIC = 100
#: limit for LIKE with a ``_`` between two ``%``, which takes a step of Python for each character of the text
MAX_SCANS = 8
#: limits for the characters of a text in LIKE and topic(), which are unknown for a longer text; a routing key has at
#: most 255 bytes
MAX_LIKE_TEXT = 1024
MAX_TOPIC_TEXT = 255
#: exclusive limit for integers
INTEGER_LIMIT = 1 << 64
#: limit for the characters of a header's text that can be a number
MAX_NUMBER_LENGTH = 40


Number = int | float

_INTEGER = re.compile(r"[+-]?[0-9]+").fullmatch
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?").fullmatch
_INFINITE = float("inf")


def number_of(text: str) -> Number | None:
    """Return a text as a number; None if the text is not a number."""
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
    """Return a text as a boolean; None if the text is not a boolean."""
    if text == "true":
        return True
    return False if text == "false" else None


def _divide(left: Number, right: Number) -> Number | None:
    """Return the quotient, or None for a division by zero; integers truncate towards zero, as in Java."""
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
