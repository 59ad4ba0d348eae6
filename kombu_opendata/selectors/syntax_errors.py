"""Syntax errors of filters: the expected tokens and the position, with a caret below it."""

from __future__ import annotations

from lark import Token

from ..errors import SelectorError

#: characters of a long line that are shown on either side of the position
_AROUND = 60
#: characters of a word that an error shows
_MAX_SHOWN = 40


class Mistake(Exception):
    """Mistake at a position, for code that does not have the whole text."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(at, what)
        self.at, self.what = at, what


def shown(text: str) -> str:
    """Return a word, shortened if it is long."""
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


def position(token: Token) -> int:
    return token.start_pos or 0


def syntax_error(text: str, at: int, what: str) -> SelectorError:
    """Return the error for a mistake at character ``at``; ``len(text)`` is the end."""
    begin = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    line = text.count("\n", 0, at) + 1
    column = at - begin + 1
    if end < 0:
        end = len(text)
    first, last = max(begin, at - _AROUND), min(end, at + _AROUND)
    shown = "".join(each if each.isprintable() else " " for each in text[first:last])
    before = "…" if first > begin else ""
    after = "…" if last < end else ""
    caret = f"{before}{shown}{after}\n{' ' * (len(before) + at - first)}^"
    return SelectorError(f"line {line}, column {column}: {what}\n{caret}", line=line, column=column, caret=caret)


def unexpected(text: str, token: Token, accepted: set[str], unclosed: Token | None) -> SelectorError:
    """Return the error for an unexpected token, or for an unexpected end of the text.

    ``accepted`` are the types of tokens that would be valid; ``unclosed`` is the last open parenthesis.
    """
    expected = next(what for tokens, what in _EXPECTED if tokens <= accepted)
    if token.type == "$END":
        if unclosed is not None and "RPAR" in accepted:
            return syntax_error(text, position(unclosed), "this ( is never closed")
        return syntax_error(text, len(text), f"expected {expected}, but the filter ends")
    if token.type == "RPAR" and "$END" in accepted:
        return syntax_error(text, position(token), "this ) closes nothing")
    if token.type == "_NULL" and "NAME" in accepted:
        return syntax_error(text, position(token), "NULL can't be compared: use IS NULL or IS NOT NULL")
    return syntax_error(text, position(token), f"expected {expected}, found {shown(token)}")


#: expected elements where these tokens are accepted; the first match applies
_EXPECTED = (
    ({"NAME", "NUMBER"}, "a header, a constant or a condition"),
    ({"NAME"}, "a header's name"),
    ({"TEXT", "NUMBER"}, "a constant"),
    ({"TEXT"}, "a text constant in single quotes"),
    ({"NUMBER"}, "a number"),
    ({"_OR", "COMPARISON"}, "an operator, AND, OR or the end"),
    ({"_OR"}, "AND, OR or the end"),
    ({"PLUS", "_AND"}, "AND and the upper bound of BETWEEN"),
    ({"COMMA", "RPAR"}, "a comma or )"),
    ({"COMMA"}, "a comma"),
    ({"LPAR"}, "( and a list of constants"),
    ({"RPAR"}, ")"),
    ({"_NULL"}, "NULL or NOT NULL"),
    ({"_IN"}, "IN, LIKE or BETWEEN"),
    ({"$END"}, "the end"),
)


def unreadable(text: str, at: int) -> SelectorError:
    """Return the error for a character that can't begin a token."""
    symbol = text[at]
    if symbol in "'\"":
        what = "text constant" if symbol == "'" else "header name"
        return syntax_error(text, at, f"the {what} has no closing {symbol}")
    if text.startswith("--", at):
        return syntax_error(text, at, "a filter can't have comments; put a space between two minus signs")
    if symbol == ".":
        return syntax_error(text, at, 'unexpected dot: a header name with dots must be in double quotes: "a.b"')
    if symbol in "!;":
        return syntax_error(text, at, f"found {symbol}, which is not part of the language")
    hint = 'a header name with characters other than letters, digits, _ and $ must be in double quotes: "name"'
    return syntax_error(text, at, f"found {symbol if symbol.isprintable() else f'U+{ord(symbol):04X}'}: {hint}")
