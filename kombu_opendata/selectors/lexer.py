"""Selectors cut into words, and checked word by word: all that is not precedence.

The cutting is :mod:`.words`'. Then one pass over the tokens takes what stands
for one value (a constant, a header, the list of an IN, a pattern with its ESCAPE, a call of ``topic``) together to a
*leaf*, and refuses every token that can't stand where it stands. What is left for the parser are leaves, operators and
parentheses, in an order that makes sense.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from sqlglot.tokenizer_core import Token, TokenType

from ..errors import SelectorError
from . import lexicon
from .nodes import Boolean, Header, Number, Text, Topic
from .refusal import refusal
from .words import cut

_T = TokenType
_COMPARISONS = {_T.EQ: "=", _T.NEQ: "<>", _T.LT: "<", _T.LTE: "<=", _T.GT: ">", _T.GTE: ">="}
_ARITHMETIC = {_T.PLUS, _T.DASH, _T.STAR, _T.SLASH}
_NUMBER_TOKENS = {_T.NUMBER, _T.HEX_STRING, _T.DOT}


class Members(NamedTuple):
    """The list of an IN."""

    values: tuple[str | int | float | bool, ...]


class Pattern(NamedTuple):
    """What follows LIKE."""

    text: str
    escape: str


class Lexed(NamedTuple):
    """``tokens`` for the parser: a leaf is an identifier whose text is its index in ``leaves``.

    ``starts`` is where each leaf stands in the text.
    """

    tokens: list[Token]
    leaves: list[Any]
    starts: list[int]


def lex(text: str, *, stored: bool = False) -> Lexed:
    """Cut and check a selector; ``stored``: a queue's whole filter, which may be longer and hold any character.

    Raises:
        SelectorError: something can't stand where it stands, or there is too much of it.
    """
    max_bytes = lexicon.MAX_STORED_BYTES if stored else lexicon.MAX_BYTES
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        raise refusal(text, 0, f"the filter has {size} bytes, the limit is {max_bytes}")
    bad = re.search("[\ud800-\udfff]" if stored else "[\0\ud800-\udfff]", text)
    if bad:
        raise refusal(text, bad.start(), f"the character U+{ord(bad[0]):04X} can't be part of a filter")
    return _Pass(text, cut(text), lexicon.MAX_STORED_TERMS if stored else lexicon.MAX_TERMS).run()


class _Pass:
    """One pass over the tokens of a text."""

    def __init__(self, text: str, tokens: list[Token], max_terms: int) -> None:
        self.max_terms = max_terms
        self.text = text
        self.tokens = tokens
        self.at = 0
        self.out: list[Token] = []
        self.leaves: list[Any] = []
        self.starts: list[int] = []
        self.open: list[Token] = []
        self.prefixes: list[int] = [0]  # NOTs and signs that wait for their operand, outside and in each parenthesis
        self.arithmetic = 0

    def run(self) -> Lexed:
        if not self.tokens:
            raise refusal(self.text, len(self.text), "the filter is empty")
        while True:
            self._operand()
            if not self._operator():
                break
        if self.open:
            raise refusal(self.text, self.open[-1].start, "this ( is never closed")
        return Lexed(self.out, self.leaves, self.starts)

    # ------------------------------------------------------------------ the tokens
    def _peek(self, ahead: int = 0) -> Token | None:
        place = self.at + ahead
        return self.tokens[place] if place < len(self.tokens) else None

    def _is(self, kind: TokenType, ahead: int = 0) -> bool:
        token = self._peek(ahead)
        return token is not None and token.token_type == kind

    def _source(self, token: Token) -> str:
        return self.text[token.start : token.end + 1]

    def _unexpected(self, token: Token | None, wanted: str) -> SelectorError:
        if token is None:
            return refusal(self.text, len(self.text), f"the filter ends where {wanted} must follow")
        source = self._source(token)
        shown = source if len(source) <= 40 else source[:40] + "…"
        return refusal(self.text, token.start, f"found {shown} where {wanted} must stand")

    def _keep(self, token: Token) -> None:
        self.out.append(token)
        self.at += 1

    def _leaf(self, token: Token, value: Any) -> None:
        if len(self.leaves) >= self.max_terms:
            what = f"the filter has more than {self.max_terms} headers and constants"
            raise refusal(self.text, token.start, f"{what}; the list of an IN counts as one")
        self.out.append(Token(_T.IDENTIFIER, str(len(self.leaves)), token.line, token.col, token.start, token.end))
        self.leaves.append(value)
        self.starts.append(token.start)

    # ------------------------------------------------------------------ where a value or a condition must stand
    def _operand(self) -> None:
        wanted = "a header, a constant or a condition"
        while True:
            token = self._peek()
            if token is None:
                raise self._unexpected(None, wanted)
            kind = token.token_type
            if kind == _T.L_PAREN:
                self.open.append(token)
                self.prefixes.append(0)
            elif kind in (_T.NOT, _T.DASH, _T.PLUS):
                self.prefixes[-1] += 1
            else:
                break
            if len(self.open) + sum(self.prefixes) > lexicon.MAX_DEPTH:
                raise refusal(self.text, token.start, f"the filter is nested more than {lexicon.MAX_DEPTH} levels deep")
            if kind == _T.PLUS:  # sqlglot drops it, but +a is a number; so is - - a
                self._count_arithmetic(token)
                self.out += [Token(_T.DASH, "-", token.line, token.col, token.start, token.end)] * 2
                self.at += 1
                continue
            if kind == _T.DASH:
                self._count_arithmetic(token)
            self._keep(token)
        self._value(token, wanted)
        self.prefixes[-1] = 0

    def _count_arithmetic(self, token: Token) -> None:
        before = self._peek(-1) if self.at else None
        if before is not None and before.token_type == token.token_type == _T.DASH and before.end + 1 == token.start:
            raise refusal(self.text, before.start, "a filter has no comments; put a space between two minus signs")
        self.arithmetic += 1
        if self.arithmetic > lexicon.MAX_ARITHMETIC:
            limit = lexicon.MAX_ARITHMETIC
            raise refusal(self.text, token.start, f"the filter has more than {limit} arithmetic operators")

    def _value(self, token: Token, wanted: str) -> None:
        kind = token.token_type
        following = self._peek(1)
        if kind == _T.VAR and following is not None and following.token_type == _T.L_PAREN:
            self._leaf(token, self._call(token))
        elif kind in (_T.VAR, _T.IDENTIFIER):
            self._leaf(token, self._header(token))
        elif kind == _T.NULL:
            raise refusal(self.text, token.start, "NULL is no value to compare with: use IS NULL or IS NOT NULL")
        else:
            value = self._constant(token, wanted)
            self._leaf(token, Text(value) if isinstance(value, str) else _constant_node(value))

    def _header(self, token: Token) -> Header:
        source = self._source(token)
        self.at += 1
        if token.token_type == _T.IDENTIFIER and source.startswith('"'):
            return Header(token.text)
        if token.token_type == _T.VAR and re.fullmatch(lexicon.IDENTIFIER, source):
            return Header(source)
        hint = 'a header name with other characters than letters, digits, _ and $ stands in double quotes: "name"'
        raise refusal(self.text, token.start, f"found {source[:40]}: {hint}")

    def _call(self, token: Token) -> Topic:
        name = self._source(token)
        if name.lower() != "topic":
            raise refusal(
                self.text, token.start, f"there is no function {name[:40]}: the only one is topic(header, 'pattern')"
            )
        self.at += 2
        header = self._peek()
        if header is None or header.token_type not in (_T.VAR, _T.IDENTIFIER):
            raise self._unexpected(header, "a header's name")
        found = self._header(header)
        self._expect(_T.COMMA, "a comma")
        pattern = self._text("the pattern, a text constant,")
        self._expect(_T.R_PAREN, ")")
        return Topic(found, pattern)

    def _expect(self, kind: TokenType, what: str) -> None:
        if not self._is(kind):
            raise self._unexpected(self._peek(), what)
        self.at += 1

    def _text(self, what: str) -> str:
        token = self._peek()
        if token is None or token.token_type != _T.STRING:
            raise self._unexpected(token, what)
        self.at += 1
        return token.text

    def _constant(self, token: Token | None, wanted: str) -> str | float | bool:
        if token is None:
            raise self._unexpected(None, wanted)
        kind = token.token_type
        if kind == _T.STRING:
            self.at += 1
            return token.text
        if kind in (_T.TRUE, _T.FALSE):
            self.at += 1
            return kind == _T.TRUE
        if kind in _NUMBER_TOKENS:
            return self._number(token)
        raise self._unexpected(token, wanted)

    def _number(self, token: Token) -> int | float:
        """Also ``.5``, which is two tokens."""
        source, end = self._source(token), token
        if token.token_type == _T.DOT:
            following = self._peek(1)
            if following is None or following.token_type != _T.NUMBER or following.start != token.end + 1:
                raise self._unexpected(token, "a header, a constant or a condition")
            source, end = source + self._source(following), following
            self.at += 1
        self.at += 1
        if re.fullmatch(lexicon.INTEGER, source) or re.fullmatch(lexicon.HEX, source):
            value: int | float = int(source, 0) if len(source) <= lexicon.MAX_NUMBER_LENGTH else lexicon.INTEGER_LIMIT
            if value < lexicon.INTEGER_LIMIT:
                return value
        elif re.fullmatch("0[0-9]+", source):
            hint = "it would be octal in Java and decimal in SQL"
            raise refusal(self.text, token.start, f"{source[:40]}: an integer has no leading zero, {hint}")
        elif re.fullmatch(lexicon.DECIMAL, source):
            value = float(source)
            if value != float("inf"):
                return value
        else:
            raise refusal(self.text, token.start, f"{self.text[token.start : end.end + 1][:40]} is no number")
        raise refusal(self.text, token.start, "the number is too large: integers are below 2^64, others below 1.8e308")

    # ------------------------------------------------------------------ where an operator must stand
    def _operator(self) -> bool:
        """Take what stands behind an operand, up to where the next operand must stand; False at the end."""
        while True:
            token = self._peek()
            if token is None:
                return False
            kind = token.token_type
            if kind == _T.R_PAREN and self.open:
                self.open.pop()
                self.prefixes.pop()
                self.prefixes[-1] = 0
                self._keep(token)
            elif kind in (_T.IN, _T.LIKE, _T.IS):
                self._postfix(token)
            elif kind == _T.NOT and (self._is(_T.IN, 1) or self._is(_T.LIKE, 1)):
                self._keep(token)
                self._postfix(self.tokens[self.at])
            else:
                break
        if kind == _T.NOT and self._is(_T.BETWEEN, 1):
            self._keep(token)
            kind = _T.BETWEEN
        if kind in _ARITHMETIC:
            self._count_arithmetic(token)
        elif kind not in _COMPARISONS and kind not in (_T.AND, _T.OR, _T.BETWEEN):
            raise self._not_an_operator(token)
        self._keep(self.tokens[self.at])
        return True

    def _not_an_operator(self, token: Token) -> SelectorError:
        if token.token_type == _T.R_PAREN:
            return refusal(self.text, token.start, "this ) closes nothing")
        if token.token_type == _T.DOT:
            return refusal(self.text, token.start, 'a header name with dots stands in double quotes: "a.b"')
        return self._unexpected(token, "an operator, AND, OR or the end")

    def _postfix(self, token: Token) -> None:
        """IN with its list, LIKE with its pattern, IS with its NULL."""
        self._keep(token)
        first = self._peek()
        if token.token_type == _T.IN:
            self._expect(_T.L_PAREN, "( and a list of constants")
            assert first is not None
            self.out.append(first)
            self._leaf(first, self._members())
            self.out.append(self.tokens[self.at - 1])
        elif token.token_type == _T.LIKE:
            pattern, escape = self._text("the pattern, a text constant,"), ""
            if self._is(_T.ESCAPE):
                self.at += 1
                escape = self._escape()
            assert first is not None
            self._check_pattern(pattern, escape, first)
            self._leaf(first, Pattern(pattern, escape))
        else:
            if self._is(_T.NOT):
                self._keep(self.tokens[self.at])
            if not self._is(_T.NULL):
                raise self._unexpected(self._peek(), "NULL or NOT NULL")
            self._keep(self.tokens[self.at])

    def _escape(self) -> str:
        token = self._peek()
        escape = self._text("the escape character, a text constant,")
        if len(escape) != 1:
            assert token is not None
            raise refusal(self.text, token.start, "the escape is one character")
        return escape

    def _check_pattern(self, pattern: str, escape: str, token: Token) -> None:
        """As SQL-92 has it, the escape character stands before ``%``, ``_`` and itself only."""
        place = pattern.find(escape) if escape else -1
        while place >= 0:
            if pattern[place + 1 : place + 2] not in ("%", "_", escape):
                what = f"the escape character {escape} must be followed by %, _ or {escape}"
                raise refusal(self.text, token.start, f"{what} in the pattern")
            place = pattern.find(escape, place + 2)

    def _members(self) -> Members:
        wanted = "a constant"
        values = []
        while True:
            sign = 1
            token = self._peek()
            if token is not None and token.token_type in (_T.DASH, _T.PLUS):
                sign = -1 if token.token_type == _T.DASH else 1
                self.at += 1
                token = self._peek()
                if token is None or token.token_type not in _NUMBER_TOKENS:
                    raise self._unexpected(token, "a number")
            value = self._constant(token, wanted)
            values.append(value if isinstance(value, (str, bool)) else sign * value)
            if self._is(_T.R_PAREN):
                self.at += 1
                return Members(tuple(values))
            self._expect(_T.COMMA, "a comma or )")


def _constant_node(value: float | bool) -> Number | Boolean:
    return Boolean(value) if isinstance(value, bool) else Number(value)
