"""Parser of a filter's text to a tree of nodes. The grammar is ``grammar.lark``.

This module imports lark and builds its tables, which takes about a tenth of a second, so it is imported only when there
is a filter to parse.
"""

from __future__ import annotations

import re
from functools import cache

from lark import Lark, Token, UnexpectedCharacters, UnexpectedToken

from . import language
from .like_match import is_scan
from .syntax_errors import Mistake, position, shown, syntax_error, unexpected, unreadable
from .tree import Condition, Like, Node, children
from .tree_builder import TreeBuilder

_KEPT = ("NOT", "TRUE", "FALSE")  # the other keywords are only separators: lark drops tokens that begin with "_"
_KEYWORDS = {word: word if word in _KEPT else f"_{word}" for word in language.KEYWORDS}


def parse(text: str) -> Condition:
    """Return the tree of a filter.

    Raises:
        SelectorError: the text is not a valid filter; the error has line, column and caret.
    """
    _check_characters(text)
    parser = _language().parse_interactive(text)
    bounds = _Bounds()
    try:
        for token in parser.iter_parse():
            bounds.count(token)
        tree: Condition = parser.feed_eof()  # type: ignore[no-untyped-call]
    except UnexpectedToken as exc:
        accepted: set[str] = parser.accepts()  # type: ignore[no-untyped-call]
        raise unexpected(text, exc.token, accepted, bounds.unclosed) from None
    except UnexpectedCharacters as exc:
        raise unreadable(text, exc.pos_in_stream) from None  # type: ignore[arg-type]
    except Mistake as exc:
        raise syntax_error(text, exc.at, exc.what) from None
    if _scans(tree) > language.MAX_SCANS:
        what = f"the filter has more than {language.MAX_SCANS} LIKE patterns with _ between two %"
        raise syntax_error(text, 0, f"{what}: use fewer, or several queues")
    return tree


def _scans(node: Node) -> int:
    own = isinstance(node, Like) and is_scan(node.pattern, node.escape)
    return own + sum(map(_scans, children(node)))


def _check_characters(text: str) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > language.MAX_BYTES:
        raise syntax_error(text, 0, f"the filter has {size} bytes; the limit is {language.MAX_BYTES}")
    bad = re.search("[\0\ud800-\udfff]", text)
    if bad:
        raise syntax_error(text, bad.start(), f"the character U+{ord(bad[0]):04X} can't be part of a filter")
    if not text.strip():
        raise syntax_error(text, len(text), "the filter is empty")


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
    # isascii, because the capital of the long s is S
    keyword = _KEYWORDS.get(token.upper()) if token.isascii() else None
    return token if keyword is None else Token.new_borrow_pos(keyword, token.value, token)


class _Bounds:
    """Check of the limits token by token, so that a hostile text is refused early."""

    def __init__(self) -> None:
        self.open: list[Token] = []  # parentheses
        self._prefixes = [0]  # NOTs and signs without an operand yet: outside, and in each open parenthesis
        self._terms_left = language.MAX_TERMS
        self._arithmetic = 0
        self.in_list = False  # inside the list of an IN or the arguments of topic(), which count as one term
        self._previous: Token | None = None

    @property
    def unclosed(self) -> Token | None:
        """Parenthesis that a ``)`` would close here."""
        return self.open[-1] if self.open and not self.in_list else None

    def count(self, token: Token) -> None:
        """Count the next token.

        Raises:
            Mistake: a limit is exceeded.
        """
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
