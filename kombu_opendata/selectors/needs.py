"""What must hold for a selector to be true: a few hash look-ups that need not evaluate it.

:func:`needs` gives keys of which a message meets at least one whenever the selector is true of it.

==========  ======================================  =====================================
kind        the message has this header …           comes from
==========  ======================================  =====================================
``TEXT``    and it is this text                     ``=``, IN, LIKE and topic without wildcards
``NUMBER``  and it reads as this number             ``= 5``, IN
``PREFIX``  and it begins like this                 LIKE and topic
``THERE``   whatever it is                          any other condition over a header
==========  ======================================  =====================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from . import like, topic
from .nodes import (
    And,
    Between,
    Boolean,
    Compare,
    Condition,
    Header,
    In,
    IsNull,
    Like,
    Negative,
    Not,
    Number,
    Or,
    Text,
    Topic,
    Value,
)

TEXT, NUMBER, PREFIX, THERE = "text", "number", "prefix", "there"
#: a selector with more alternatives is looked up by another condition, or always evaluated
MAX_KEYS = 2_000


class Key(NamedTuple):
    """One way to meet a need."""

    kind: str
    header: str
    value: str | int | float = ""


#: how many messages a key lets pass that it should not, as a guess; lower is better
Cost = Callable[[Key], float]


def needs(node: Condition, cost: Cost, wanted: bool = True) -> list[Key] | None:
    """Keys of which one is met whenever the condition is true (false, with ``wanted`` False); None: no such keys.

    Where there is a choice, it takes what costs least.
    """
    match node:
        case And(parts) | Or(parts):
            found = [needs(part, cost, wanted) for part in parts]
            return _cheapest(found, cost) if isinstance(node, And) is wanted else _union(found)
        case Not(part):
            return needs(part, cost, not wanted)
        case IsNull(header):
            return None if wanted else [Key(THERE, header.name)]
        case Header(name):
            return [Key(TEXT, name, "true" if wanted else "false")]
        case Boolean(value):
            return None if value is wanted else []
    if not wanted:
        return _there(node)
    match node:
        case Compare("=", Header(name), other) | Compare("=", other, Header(name)):
            key = _equal(name, other)
            return [key] if key else _there(node)
        case In(Header(name), members):
            return [_member(name, member) for member in members] if len(members) <= MAX_KEYS else _there(node)
        case Like(Header(name), pattern, escape):
            return _begins(name, *like.constant_prefix(pattern, escape))
        case Topic(Header(name), pattern):
            return _begins(name, *topic.constant_prefix(pattern))
    return _there(node)


def _equal(name: str, value: Value) -> Key | None:
    match value:
        case Text(text):
            return Key(TEXT, name, text)
        case Boolean(truth):
            return Key(TEXT, name, "true" if truth else "false")
        case Number(number):
            return Key(NUMBER, name, number)
        case Negative(Number(number)):
            return Key(NUMBER, name, -number)
    return None


def _member(name: str, member: str | float | bool) -> Key:
    if isinstance(member, bool):
        return Key(TEXT, name, "true" if member else "false")
    return Key(TEXT if isinstance(member, str) else NUMBER, name, member)


def _begins(name: str, prefix: str, whole: bool) -> list[Key]:
    if whole:
        return [Key(TEXT, name, prefix)]
    return [Key(PREFIX, name, prefix) if prefix else Key(THERE, name)]


def _there(node: Condition) -> list[Key] | None:
    """A comparison is known only if the headers that it compares are there."""
    match node:
        case Compare(_, left, right):
            operands: tuple[Value, ...] = (left, right)
        case Between(operand, _, _) | In(operand, _) | Like(operand, _, _):
            operands = (operand,)
        case Topic(header, _):
            operands = (header,)
        case _:
            return None
    return next(([Key(THERE, operand.name)] for operand in operands if isinstance(operand, Header)), None)


def _cheapest(found: Iterable[list[Key] | None], cost: Cost) -> list[Key] | None:
    return min((keys for keys in found if keys is not None), key=lambda keys: sum(map(cost, keys)), default=None)


def _union(found: Iterable[list[Key] | None]) -> list[Key] | None:
    union: dict[Key, None] = {}
    for keys in found:
        if keys is None:
            return None
        union.update(dict.fromkeys(keys))
    return list(union) if len(union) <= MAX_KEYS else None
