"""Necessary conditions of a filter, as keys for hash look-ups.

A message that the filter matches meets at least one of the keys that :func:`required_keys` returns.

==========  ======================================  =====================================
kind        the message has this header …           derived from
==========  ======================================  =====================================
``TEXT``    with this text                          ``=``, IN, LIKE and topic without wildcards
``NUMBER``  with this number                        ``= 5``, IN
``PREFIX``  and it begins with this                 LIKE and topic
``SUFFIX``  and it ends with this                   LIKE
``RANGE``   with a number in this range             ``< <= > >=`` with a number, BETWEEN
``EXISTS``  with any value                          any other condition over a header
==========  ======================================  =====================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from . import like_match, topic_match, tree
from .compiler import MIRRORED, OPPOSITES

TEXT, NUMBER, PREFIX, SUFFIX, RANGE, EXISTS = "text", "number", "prefix", "suffix", "range", "exists"
#: limit for alternatives; a filter with more is looked up by another condition, or always evaluated
MAX_KEYS = 2_000
_INFINITE = float("inf")


class LookupKey(NamedTuple):
    """Condition for the look-up of a message. The value of a RANGE is its two ends, which it includes."""

    kind: str
    header: str
    value: str | int | float | tuple[float, float] = ""


#: estimate of the number of messages that meet a key without matching the filter; lower is better
Cost = Callable[[LookupKey], float]


def required_keys(node: tree.Condition, cost: Cost, truth: bool = True) -> list[LookupKey] | None:
    """Return the cheapest list of keys of which every message for which the condition is true meets at least one.

    With ``truth`` False, the keys are for messages for which the condition is false. None means that there are no such
    keys. An empty list means that the condition is never true.
    """
    match node:
        case tree.Logical(operator, parts):
            alternatives = [required_keys(part, cost, truth) for part in parts]
            return _cheapest(alternatives, cost) if (operator == "AND") is truth else _union(alternatives)
        case tree.Not(part):
            return required_keys(part, cost, not truth)
        case tree.IsNull(header):
            return None if truth else [LookupKey(EXISTS, header.name)]
        case tree.Header(name):
            return [LookupKey(TEXT, name, "true" if truth else "false")]
        case tree.Boolean(value):
            return None if value is truth else []
        case tree.Compare(sign, left, right):
            return _compared(sign if truth else OPPOSITES[sign], left, right)
    if not truth:
        return _existing(node)
    match node:
        case tree.In(tree.Header(name), members):
            return [_member(name, member) for member in members] if len(members) <= MAX_KEYS else _existing(node)
        case tree.Like(tree.Header(name), pattern, escape):
            return _like(name, pattern, escape)
        case tree.Topic(tree.Header(name), pattern):
            return _begins(name, *topic_match.constant_prefix(pattern))
        case tree.Between(tree.Header(name), low, high):
            first, last = tree.constant_value(low), tree.constant_value(high)
            if type(first) in (int, float) and type(last) in (int, float):
                return [LookupKey(RANGE, name, (first, last))]  # type: ignore[arg-type]
    return _existing(node)


def _compared(sign: str, left: tree.Value, right: tree.Value) -> list[LookupKey] | None:
    if not isinstance(left, tree.Header) and isinstance(right, tree.Header):
        sign, left, right = MIRRORED[sign], right, left
    value = tree.constant_value(right)
    if isinstance(left, tree.Header) and value is not None:
        if sign == "=":
            return [_member(left.name, value)]
        if not isinstance(value, (str, bool)) and sign != "<>":
            return [LookupKey(RANGE, left.name, (value, _INFINITE) if sign in (">", ">=") else (-_INFINITE, value))]
    return _existing(tree.Compare(sign, left, right))


def _like(name: str, pattern: str, escape: str) -> list[LookupKey]:
    prefix, whole = like_match.constant_prefix(pattern, escape)
    suffix = like_match.constant_suffix(pattern, escape)
    if prefix or whole or not suffix:
        return _begins(name, prefix, whole)
    return [LookupKey(SUFFIX, name, suffix)]


def _member(name: str, member: str | float | bool) -> LookupKey:
    if isinstance(member, bool):
        return LookupKey(TEXT, name, "true" if member else "false")
    return LookupKey(TEXT if isinstance(member, str) else NUMBER, name, member)


def _begins(name: str, prefix: str, whole: bool) -> list[LookupKey]:
    if whole:
        return [LookupKey(TEXT, name, prefix)]
    return [LookupKey(PREFIX, name, prefix) if prefix else LookupKey(EXISTS, name)]


def _existing(node: tree.Condition) -> list[LookupKey] | None:
    """Return the key of a header that must exist: without its headers, a comparison is unknown."""
    match node:
        case tree.Compare(_, left, right):
            operands: tuple[tree.Value, ...] = (left, right)
        case tree.Between(operand, _, _) | tree.In(operand, _) | tree.Like(operand, _, _):
            operands = (operand,)
        case tree.Topic(header, _):
            operands = (header,)
        case _:
            return None
    return next(([LookupKey(EXISTS, operand.name)] for operand in operands if isinstance(operand, tree.Header)), None)


def _cheapest(alternatives: Iterable[list[LookupKey] | None], cost: Cost) -> list[LookupKey] | None:
    return min((keys for keys in alternatives if keys is not None), key=lambda keys: sum(map(cost, keys)), default=None)


def _union(alternatives: Iterable[list[LookupKey] | None]) -> list[LookupKey] | None:
    union: dict[LookupKey, None] = {}
    for keys in alternatives:
        if keys is None:
            return None
        union.update(dict.fromkeys(keys))
    return list(union) if len(union) <= MAX_KEYS else None
