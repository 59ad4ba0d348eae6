"""A selector's text cut into words by sqlglot's tokenizer, which is told the words of selectors only."""

from __future__ import annotations

import re
from typing import ClassVar

from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType
from sqlglot.tokens import Tokenizer

from . import lexicon
from .refusal import refusal

_T = TokenType
_RESERVED = {getattr(_T, word) for word in lexicon.KEYWORDS}
_KEYWORDS = {word: getattr(_T, word) for word in lexicon.KEYWORDS}


class _Words(Tokenizer):
    """Without comments, without escapes other than a doubled quote, without any other SQL."""

    SINGLE_TOKENS = {  # noqa: RUF012 - sqlglot's way
        "(": _T.L_PAREN, ")": _T.R_PAREN, ",": _T.COMMA, ".": _T.DOT, "+": _T.PLUS, "-": _T.DASH, "*": _T.STAR,
        "/": _T.SLASH, "=": _T.EQ, "<": _T.LT, ">": _T.GT, "'": _T.UNKNOWN, '"': _T.UNKNOWN, "!": _T.UNKNOWN,
    }  # fmt: skip
    KEYWORDS = {**_KEYWORDS, "<>": _T.NEQ, "!=": _T.NEQ, "<=": _T.LTE, ">=": _T.GTE}  # noqa: RUF012
    QUOTES = ["'"]  # noqa: RUF012
    IDENTIFIERS = ['"']  # noqa: RUF012
    STRING_ESCAPES = ["'"]  # noqa: RUF012
    HEX_STRINGS = [("0x", ""), ("0X", "")]  # noqa: RUF012
    COMMENTS: ClassVar[list[str | tuple[str, str]]] = []
    NUMERIC_LITERALS: ClassVar[dict[str, str]] = {}
    COMMANDS: ClassVar[set[TokenType]] = set()


#: the first of these that has no end is a quote that nobody closed
_QUOTED = re.compile(r"""'(?:[^']|'')*+'|"(?:[^"]|"")*+"|['"]""")


def cut(text: str) -> list[Token]:
    """The words of a text.

    Raises:
        SelectorError: a quote is not closed, or a word is none.
    """
    try:
        tokens = _Words().tokenize(text)
    except TokenError as exc:
        for found in _QUOTED.finditer(text):
            if len(found[0]) == 1:
                what = "text constant" if found[0] == "'" else "header name"
                raise refusal(text, found.start(), f"the {what} has no closing {found[0]}") from exc
        raise refusal(text, 0, f"the filter can't be read: {exc}") from exc
    for token in tokens:  # the long s is a letter whose capital is S
        if token.token_type in _RESERVED and not token.text.isascii():
            raise refusal(text, token.start, f"{token.text} is no word of filters")
    return tokens
