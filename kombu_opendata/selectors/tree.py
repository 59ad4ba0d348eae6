"""Tree of a filter, and its text (docs/rfcs/0005-selectors.md).

A *value* is a header, a constant or arithmetic over them; a *condition* is true, false or unknown. A header or a
boolean constant can be both. Nodes are plain data: they may be compared, hashed and shared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias

from msgspec import Struct

from .language import IDENTIFIER, KEYWORDS


class TreeNode(Struct, frozen=True):
    """Base of all nodes."""


class Header(TreeNode, frozen=True):
    """Value of a message's header; NULL if the message has no such header."""

    name: str


class Text(TreeNode, frozen=True):
    """Text constant."""

    value: str


class Number(TreeNode, frozen=True):
    """Number constant, never negative: the sign is a :class:`Negative`."""

    value: int | float


class Boolean(TreeNode, frozen=True):
    """Constant TRUE or FALSE."""

    value: bool


class Negative(TreeNode, frozen=True):
    """Value after a minus sign."""

    operand: Value


class Arithmetic(TreeNode, frozen=True):
    """Arithmetic operation; ``operator`` is one of ``+ - * /``."""

    operator: str
    left: Value
    right: Value


class Compare(TreeNode, frozen=True):
    """Comparison; ``operator`` is one of ``= <> < <= > >=``."""

    operator: str
    left: Value
    right: Value


class Between(TreeNode, frozen=True):
    """Condition ``operand >= low AND operand <= high``."""

    operand: Value
    low: Value
    high: Value


class In(TreeNode, frozen=True):
    """Condition ``operand = member OR …``; a number among the members may be negative."""

    operand: Value
    members: tuple[str | int | float | bool, ...]


class Like(TreeNode, frozen=True):
    """Pattern match.

    ``%`` matches any text, ``_`` any character; a character after the escape character matches itself.
    """

    operand: Value
    pattern: str
    escape: str = ""


class IsNull(TreeNode, frozen=True):
    """Condition that the message has no such header."""

    header: Header


class Topic(TreeNode, frozen=True):
    """Condition that the header matches the pattern of a topic exchange."""

    header: Header
    pattern: str


class Not(TreeNode, frozen=True):
    part: Condition


class Logical(TreeNode, frozen=True):
    """Two or more parts with ``operator`` (AND or OR) between them; no part is a Logical with the same operator."""

    operator: str
    parts: tuple[Condition, ...]


Constant: TypeAlias = Text | Number | Boolean
Value: TypeAlias = Header | Text | Number | Boolean | Negative | Arithmetic
Condition: TypeAlias = Header | Boolean | Compare | Between | In | Like | IsNull | Topic | Not | Logical
Node: TypeAlias = Value | Condition


def constant_node(value: str | float | bool) -> Constant | Negative:
    if isinstance(value, bool):
        return Boolean(value)
    if isinstance(value, str):
        return Text(value)
    return Number(value) if repr(value)[0] != "-" else Negative(Number(-value))


def constant_value(node: Node) -> str | int | float | bool | None:
    """Return the value of a constant, with its sign; None if the node is not a constant."""
    match node:
        case Text(value) | Number(value) | Boolean(value):
            return value
        case Negative(Number(value)):
            return -value
        case Negative(Negative(Number(value))):
            return value
    return None


def all_of(parts: list[Condition]) -> Condition:
    """Return the parts joined by AND; TRUE if there are none."""
    return _joined("AND", parts) if parts else Boolean(True)


def any_of(parts: list[Condition]) -> Condition:
    """Return the parts joined by OR; FALSE if there are none."""
    return _joined("OR", parts) if parts else Boolean(False)


def _joined(operator: str, parts: list[Condition]) -> Condition:
    flat: list[Condition] = []
    for part in parts:
        flat += part.parts if isinstance(part, Logical) and part.operator == operator else (part,)
    return Logical(operator, tuple(flat)) if len(flat) > 1 else flat[0]


def children(node: Node) -> tuple[Node, ...]:
    """Return the children of a node, from left to right."""
    match node:
        case Logical(_, parts):
            return parts
        case Not(part):
            return (part,)
        case Compare(_, left, right) | Arithmetic(_, left, right):
            return left, right
        case Between(operand, low, high):
            return operand, low, high
        case In(operand, _) | Like(operand, _, _) | Negative(operand):
            return (operand,)
        case IsNull(header) | Topic(header, _):
            return (header,)
    return ()


def headers_of(node: Node) -> Iterator[str]:
    """Yield the names of the headers that the node reads, with repetitions."""
    if isinstance(node, Header):
        yield node.name
    for child in children(node):
        yield from headers_of(child)


# ---------------------------------------------------------------------- text
def quoted(text: str, quote: str = "'") -> str:
    """Return a text in quotes: single quotes for a constant, double quotes for a header's name."""
    return quote + text.replace(quote, 2 * quote) + quote


def identifier(name: str) -> str:
    """Return a header's name in the syntax of filters, in quotes if necessary."""
    return name if re.fullmatch(IDENTIFIER, name) and name.upper() not in KEYWORDS else quoted(name, '"')


def constant(value: str | float | bool) -> str:
    """Return a constant in the syntax of filters."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    return quoted(value) if isinstance(value, str) else repr(value)


def text_of(node: Node) -> str:
    """Return the text of a tree; :func:`.parser.parse` returns the same tree for it."""
    match node:
        case Header(name):
            return identifier(name)
        case Text(value) | Number(value) | Boolean(value):
            return constant(value)
        case Negative(operand):
            return f"- {_operand(operand)}"
        case Arithmetic(operator, left, right) | Compare(operator, left, right):
            return f"{_operand(left)} {operator} {_operand(right)}"
        case Between(operand, low, high):
            return f"{_operand(operand)} BETWEEN {_operand(low)} AND {_operand(high)}"
        case In(operand, members):
            return f"{_operand(operand)} IN ({', '.join(map(constant, members))})"
        case Like(operand, pattern, escape):
            text = f"{_operand(operand)} LIKE {quoted(pattern)}"
            return f"{text} ESCAPE {quoted(escape)}" if escape else text
        case IsNull(header):
            return f"{identifier(header.name)} IS NULL"
        case Topic(header, pattern):
            return f"topic({identifier(header.name)}, {quoted(pattern)})"
        case Not(IsNull(header)):
            return f"{identifier(header.name)} IS NOT NULL"
        case Not(part):
            return f"NOT ({text_of(part)})"
        case Logical(operator, parts):
            texts = (f"({text_of(part)})" if isinstance(part, Logical) else text_of(part) for part in parts)
            return f" {operator} ".join(texts)


def _operand(node: Value) -> str:
    text = text_of(node)
    return f"({text})" if isinstance(node, (Arithmetic, Negative)) else text
