"""Texts to trees. sqlglot's parser knows which operator binds how; everything else is checked before and after it.

This module imports sqlglot, which takes a quarter of a second: import it when there is a selector to parse.
"""

from __future__ import annotations

from typing import Any

from sqlglot import exp
from sqlglot.errors import ErrorLevel, ParseError
from sqlglot.parser import Parser

from ..errors import SelectorError
from .lexer import Lexed, lex
from .nodes import (
    Arithmetic,
    Between,
    Boolean,
    Compare,
    Condition,
    Header,
    In,
    IsNull,
    Like,
    Negative,
    Node,
    Not,
    Number,
    Text,
    Value,
    all_of,
    any_of,
)
from .refusal import refusal

_COMPARISONS: dict[type, str] = {exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
_ARITHMETIC: dict[type, str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/"}


def parse(text: str, *, stored: bool = False) -> Condition:
    """The tree of a selector; ``stored``: it is the whole filter of a queue.

    Raises:
        SelectorError: it is none.
    """
    lexed = lex(text, stored=stored)
    try:
        (tree,) = Parser(error_level=ErrorLevel.IMMEDIATE).parse_into(exp.Condition, lexed.tokens, text)
    except ParseError as exc:
        raise _unparsed(text, lexed, exc) from exc
    except RecursionError as exc:  # the caller was deep already
        raise refusal(text, 0, "the filter is nested too deeply") from exc
    return _Translation(text, lexed).run(tree)


def _unparsed(text: str, lexed: Lexed, exc: ParseError) -> SelectorError:
    places: dict[Any, int] = {(token.line, token.col): token.start for token in lexed.tokens}
    found = exc.errors[0] if exc.errors else {}
    at = places.get((found.get("line"), found.get("col")), len(text))
    return refusal(text, at, "the filter makes no sense here: check what BETWEEN, AND and the parentheses belong to")


class _Translation:
    """sqlglot's tree to ours. ``used`` leaves were met so far: they come in the order of the text."""

    def __init__(self, text: str, lexed: Lexed) -> None:
        self.text = text
        self.lexed = lexed
        self.used = 0

    def run(self, tree: Any) -> Condition:
        condition = self._condition(tree)
        if self.used != len(self.lexed.leaves):
            raise self._refuse("the filter makes no sense from here on")
        return condition

    def _refuse(self, what: str, leaf: int | None = None) -> SelectorError:
        starts = self.lexed.starts
        place = self.used if leaf is None else leaf
        return refusal(self.text, starts[place] if place < len(starts) else len(self.text), what)

    def _leaf(self, tree: Any) -> Any:
        name = tree.this.this if isinstance(tree, exp.Column) and isinstance(tree.this, exp.Identifier) else None
        if name != str(self.used):
            raise self._refuse("this can't be part of a filter")
        self.used += 1
        return self.lexed.leaves[self.used - 1]

    def _condition(self, tree: Any) -> Condition:
        first = self.used
        node = self._node(tree)
        if not isinstance(node, (Text, Number, Negative, Arithmetic)):
            return node
        raise self._refuse("this is a value; a condition must stand here, such as a comparison", first)

    def _value(self, tree: Any) -> Value:
        first = self.used
        node = self._node(tree)
        if isinstance(node, (Header, Text, Number, Boolean, Negative, Arithmetic)):
            return node
        raise self._refuse("this is a condition; a header, a constant or arithmetic must stand here", first)

    def _node(self, tree: Any) -> Node:
        kind = type(tree)
        if kind is exp.Paren:
            return self._node(tree.this)
        if kind is exp.Column:
            node: Node = self._leaf(tree)
            return node
        if kind is exp.And or kind is exp.Or:
            parts = [self._condition(part) for part in _spine(tree)]
            return all_of(parts) if kind is exp.And else any_of(parts)
        if kind is exp.Not:
            return Not(self._condition(tree.this))
        if kind is exp.Neg:
            return Negative(self._value(tree.this))
        if kind in _COMPARISONS:
            return Compare(_COMPARISONS[kind], self._value(tree.this), self._value(tree.expression))
        if kind in _ARITHMETIC:
            return Arithmetic(_ARITHMETIC[kind], self._value(tree.this), self._value(tree.expression))
        return self._predicate(kind, tree)

    def _predicate(self, kind: type, tree: Any) -> Condition:
        if kind is exp.Escape:
            raise self._refuse("this can't be part of a filter")
        first = self.used
        negated = bool(tree.args.get("negate"))
        node: Condition
        if kind is exp.Between:
            node = Between(self._value(tree.this), self._value(tree.args["low"]), self._value(tree.args["high"]))
        elif kind is exp.In:
            operand = self._value(tree.this)
            node = In(operand, self._leaf(tree.expressions[0]).values)
        elif kind is exp.Like:
            operand = self._value(tree.this)
            pattern = self._leaf(tree.expression)
            node = Like(operand, pattern.text, pattern.escape)
        elif kind is exp.Is:
            header = self._value(tree.this)
            if not isinstance(header, Header):
                raise self._refuse("only a header can be NULL", first)
            node = IsNull(header)
        else:
            raise self._refuse("this can't be part of a filter")
        return Not(node) if negated else node


def _spine(tree: Any) -> list[Any]:
    """The parts of a chain of equal operators, which sqlglot nests to the left."""
    parts = []
    kind = type(tree)
    while type(tree) is kind:
        parts.append(tree.expression)
        tree = tree.this
    return [tree, *reversed(parts)]
