"""Builder of a filter's tree: a node for each construct of ``grammar.lark``, as soon as it is complete."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from lark import Token, Transformer, v_args

from . import language, tree
from .syntax_errors import Mistake, position, shown


class _Operand(NamedTuple):
    """Node, and the position of its first header or constant in the text."""

    node: tree.Node
    at: int


@v_args(inline=True)
class TreeBuilder(Transformer[Token, Any]):
    """Transformer with a method for each name in the grammar."""

    def start(self, part: _Operand) -> tree.Condition:
        return _condition(part)

    def disjunction(self, *parts: _Operand) -> _Operand:
        return _Operand(tree.any_of([_condition(part) for part in parts]), parts[0].at)

    def conjunction(self, *parts: _Operand) -> _Operand:
        return _Operand(tree.all_of([_condition(part) for part in parts]), parts[0].at)

    def negation(self, _not: Token, part: _Operand) -> _Operand:
        return _Operand(tree.Not(_condition(part)), part.at)

    def comparison(self, left: _Operand, operator: Token, right: _Operand) -> _Operand:
        sign = "<>" if operator == "!=" else str(operator)
        return _Operand(tree.Compare(sign, _value(left), _value(right)), left.at)

    def between(self, operand: _Operand, negated: Token | None, low: _Operand, high: _Operand) -> _Operand:
        return _test(operand, negated, tree.Between(_value(operand), _value(low), _value(high)))

    def membership(self, operand: _Operand, negated: Token | None, *members: _Operand) -> _Operand:
        return _test(operand, negated, tree.In(_value(operand), tuple(_plain(member.node) for member in members)))

    def like(self, operand: _Operand, negated: Token | None, pattern: Token, escape: Token | None) -> _Operand:
        node = tree.Like(_value(operand), _unquoted(pattern), "" if escape is None else _unquoted(escape))
        if escape is not None:
            _check_escapes(pattern, node.pattern, escape, node.escape)
        return _test(operand, negated, node)

    def is_null(self, operand: _Operand, negated: Token | None) -> _Operand:
        if not isinstance(operand.node, tree.Header):
            raise Mistake(operand.at, "only a header can be NULL")
        return _test(operand, negated, tree.IsNull(operand.node))

    def topic(self, name: Token, header: _Operand, pattern: Token) -> _Operand:
        assert isinstance(header.node, tree.Header)
        return _Operand(tree.Topic(header.node, _unquoted(pattern)), position(name))

    def arithmetic(self, left: _Operand, operator: Token, right: _Operand) -> _Operand:
        return _Operand(tree.Arithmetic(str(operator), _value(left), _value(right)), left.at)

    def negative(self, _sign: Token, part: _Operand) -> _Operand:
        return _Operand(tree.Negative(_value(part)), part.at)

    def positive(self, _sign: Token, part: _Operand) -> _Operand:
        """Build the node of ``+a``, which is a number, like ``- - a``, and not just ``a``."""
        return _Operand(tree.Negative(tree.Negative(_value(part))), part.at)

    def header(self, name: Token) -> _Operand:
        return _Operand(tree.Header(_unquoted(name) if name.type == "QUOTED_NAME" else str(name)), position(name))

    def text(self, token: Token) -> _Operand:
        return _Operand(tree.Text(_unquoted(token)), position(token))

    def number(self, token: Token) -> _Operand:
        return _Operand(tree.Number(_number(token)), position(token))

    def boolean(self, token: Token) -> _Operand:
        return _Operand(tree.Boolean(token.type == "TRUE"), position(token))


def _test(operand: _Operand, negated: Token | None, node: tree.Condition) -> _Operand:
    return _Operand(node if negated is None else tree.Not(node), operand.at)


def _condition(part: _Operand) -> tree.Condition:
    if isinstance(part.node, (tree.Text, tree.Number, tree.Negative, tree.Arithmetic)):
        raise Mistake(part.at, "this is a value; expected a condition, such as a comparison")
    return part.node


def _value(part: _Operand) -> tree.Value:
    if isinstance(part.node, (tree.Header, tree.Text, tree.Number, tree.Boolean, tree.Negative, tree.Arithmetic)):
        return part.node
    raise Mistake(part.at, "this is a condition; expected a header, a constant or arithmetic")


def _plain(node: tree.Node) -> str | int | float | bool:
    """Return the value of a constant in the list of an IN."""
    value = tree.constant_value(node)
    assert value is not None
    return value


def _unquoted(token: Token) -> str:
    quote = token[0]
    return token[1:-1].replace(2 * quote, quote)


def _number(token: Token) -> int | float:
    source = str(token)
    if re.fullmatch(language.INTEGER, source) or re.fullmatch(language.HEX, source):
        value: int | float = int(source, 0) if len(source) <= language.MAX_NUMBER_LENGTH else language.INTEGER_LIMIT
        if value < language.INTEGER_LIMIT:
            return value
    elif re.fullmatch("0[0-9]+", source):
        why = "an integer can't have a leading zero, which means octal in Java and decimal in SQL"
        raise Mistake(position(token), f"{shown(source)}: {why}")
    elif re.fullmatch(language.DECIMAL, source):
        value = float(source)
        if value != float("inf"):
            return value
    else:
        raise Mistake(position(token), f"{shown(source)} is not a number")
    raise Mistake(position(token), "the number is too large: integers must be below 2^64, others below 1.8e308")


def _check_escapes(pattern_at: Token, pattern: str, escape_at: Token, escape: str) -> None:
    """Check that the escape character only precedes ``%``, ``_`` and itself, as in SQL-92."""
    if len(escape) != 1:
        raise Mistake(position(escape_at), "the escape must be one character")
    for match in re.finditer(f"(?s){re.escape(escape)}(.?)", pattern):
        if match[1] not in ("%", "_", escape):
            what = f"the escape character {escape} must be followed by %, _ or {escape} in the pattern"
            raise Mistake(position(pattern_at), what)
