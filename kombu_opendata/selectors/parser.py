"""Parser of a filter's text to a tree of nodes. The grammar is ``grammar.lark``; lark builds the tree as it parses.

This module imports lark and builds its tables, which takes about a tenth of a second, so it is imported only when there
is a filter to parse.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken, v_args

from . import language, tree
from .like_match import is_scan
from .syntax_errors import Mistake, position, shown, syntax_error, unexpected, unreadable
from .tree import Condition, Like, Node, children

#: keywords that the methods of TreeBuilder receive. Lark drops tokens whose names begin with "_", such as the others.
_NAMED_KEYWORDS = ("NOT", "TRUE", "FALSE")
_KEYWORDS = {word: word if word in _NAMED_KEYWORDS else f"_{word}" for word in language.KEYWORDS}


def parse(text: str) -> Condition:
    """Return the tree of a filter; raise SelectorError, with line, column and caret, for an invalid text."""
    operand = _operand(text)
    try:
        return _condition(operand)
    except Mistake as exc:
        raise syntax_error(text, exc.at, exc.what) from None


def parse_expression(text: str) -> Node:
    """Return the tree of a text that is a condition or a value; raise SelectorError as :func:`parse`."""
    return _operand(text).node


def _operand(text: str) -> _Operand:
    _check_characters(text)
    parser = _language().parse_interactive(text)
    bounds = _Bounds()
    try:
        for token in parser.iter_parse():
            bounds.count(token)
        operand: _Operand = parser.feed_eof()  # type: ignore[no-untyped-call]
    except UnexpectedToken as exc:
        accepted: set[str] = parser.accepts()  # type: ignore[no-untyped-call]
        raise unexpected(text, exc.token, accepted, bounds.unclosed) from None
    except UnexpectedCharacters as exc:
        raise unreadable(text, exc.pos_in_stream) from None  # type: ignore[arg-type]
    except Mistake as exc:
        raise syntax_error(text, exc.at, exc.what) from None
    if _scans(operand.node) > language.MAX_SCANS:
        what = f"the filter has more than {language.MAX_SCANS} LIKE patterns with _ between two %"
        raise syntax_error(text, 0, f"{what}: use fewer, or several queues")
    return operand


def _scans(node: Node) -> int:
    is_scanned = isinstance(node, Like) and is_scan(node.pattern, node.escape)
    return is_scanned + sum(map(_scans, children(node)))


def _check_characters(text: str) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > language.MAX_BYTES:
        raise syntax_error(text, 0, f"the filter has {size} bytes; the limit is {language.MAX_BYTES}")
    bad = re.search("[\0\ud800-\udfff]", text)
    if bad:
        raise syntax_error(text, bad.start(), f"the character U+{ord(bad[0]):04X} can't be part of a filter")
    if not text.strip():
        raise syntax_error(text, len(text), "the filter is empty")


class _Operand(NamedTuple):
    """Node, and the position of its first header or constant in the text."""

    node: tree.Node
    at: int


@v_args(inline=True)
class TreeBuilder(Transformer[Token, Any]):
    """Transformer with a method for each name in the grammar."""

    def start(self, part: _Operand) -> _Operand:
        return part

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
        """Build ``+a`` as ``- - a``, because ``+a``, unlike ``a``, is NULL if the text of ``a`` is not a number."""
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


@cache
def _language() -> Lark:
    return Lark.open(
        "grammar.lark",
        rel_to=__file__,
        parser="lalr",
        lexer="basic",
        transformer=TreeBuilder(),
        lexer_callbacks={"NAME": _keyword_or_name},
    )


def _keyword_or_name(token: Token) -> Token:
    # isascii, because the capital of the long s (U+017F) is S
    keyword = _KEYWORDS.get(token.upper()) if token.isascii() else None
    return token if keyword is None else Token.new_borrow_pos(keyword, token.value, token)


class _Bounds:
    """Check of the limits token by token, so that a hostile text is refused early."""

    def __init__(self) -> None:
        self.open: list[Token] = []  # parentheses
        self._prefixes = [0]  # number of NOTs and signs before the next operand, for each level of parentheses
        self._terms_left = language.MAX_TERMS
        self._arithmetic = 0
        self.in_list = False  # in the list of an IN or the arguments of topic(), which count as one term
        self._previous: Token | None = None

    @property
    def unclosed(self) -> Token | None:
        return self.open[-1] if self.open and not self.in_list else None

    def count(self, token: Token) -> None:
        """Count the next token; raise Mistake if a limit is exceeded."""
        previous, self._previous = self._previous, token
        kind, before = token.type, previous.type if previous is not None else ""
        if self.in_list:
            self.in_list = kind != "RPAR"
        elif kind == "LPAR" and previous is not None and before in ("_IN", "NAME"):
            self.in_list = True
            if before == "NAME" and previous.lower() != "topic":
                what = f"there is no function {shown(previous)}: the only one is topic(header, 'pattern')"
                raise Mistake(position(previous), what)
        elif kind == "LPAR":
            self.open.append(token)
            self._prefixes.append(0)
            self._check_depth(token)
        elif kind == "RPAR" and self.open:
            self.open.pop()
            self._prefixes.pop()
            self._prefixes[-1] = 0
        elif kind in ("NOT", "PLUS", "MINUS", "STAR", "SLASH"):
            self._operator(token, is_prefix=before not in (*_TERMS, "RPAR"))
        elif kind in _TERMS:
            self._term(token)

    def _operator(self, token: Token, *, is_prefix: bool) -> None:
        if token.type != "NOT":
            self._arithmetic += 1
            if self._arithmetic > language.MAX_ARITHMETIC:
                raise Mistake(
                    position(token), f"the filter has more than {language.MAX_ARITHMETIC} arithmetic operators"
                )
        if is_prefix:
            self._prefixes[-1] += 1
            self._check_depth(token)

    def _check_depth(self, token: Token) -> None:
        if len(self.open) + sum(self._prefixes) > language.MAX_DEPTH:
            raise Mistake(position(token), f"the filter is nested more than {language.MAX_DEPTH} levels deep")

    def _term(self, token: Token) -> None:
        self._prefixes[-1] = 0
        self._terms_left -= 1
        if self._terms_left < 0:
            what = f"the filter has more than {language.MAX_TERMS} headers and constants"
            raise Mistake(position(token), f"{what}; the list of an IN counts as one")


_TERMS = ("NAME", "QUOTED_NAME", "TEXT", "NUMBER", "TRUE", "FALSE")
