"""Compiled filter: a text or a tree as a function over headers, and the explanation of its value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from typing import Any

import msgspec

from ..errors import RequestError, SelectorError
from .compiler import Headers, Predicate, compile_condition, compile_text, most_steps
from .language import boolean_of, number_of
from .tree import Boolean, Condition, Header, Logical, Node, Not, headers_of, text_of


class Selector:
    """Filter over the headers of messages."""

    def __init__(self, condition: Condition, text: str | None = None) -> None:
        self.condition = condition
        self.text = text_of(condition) if text is None else text
        #: returns True if the filter is true for these headers, and False if it is false or unknown; never raises
        self.matches: Predicate = compile_condition(condition)

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the headers that the filter reads."""
        return frozenset(headers_of(self.condition))

    @cached_property
    def steps(self) -> int:
        """Approximate maximum of Python steps for an evaluation."""
        return most_steps(self.condition)

    def explain(self, headers: Headers) -> Explanation:
        """Return the value of each part of the condition for these headers."""
        return explain(self.condition, headers)

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"


def compile_selector(text: str) -> Selector:
    """Compile a filter; raise SelectorError with the position, or RequestError if it is not a text."""
    if not isinstance(text, str):
        raise RequestError(f"a filter must be a str, not {type(text).__name__}")
    result = _compile(text)
    if isinstance(result, SelectorError):
        raise SelectorError(result.text, **result.values)
    return result


def precompile(text: str) -> None:
    """Compile a filter into the cache of :func:`compile_selector`; any thread may call this."""
    _compile(text)


@lru_cache(maxsize=16)  # a declaration compiles its filter once to validate it and once to use it
def _compile(text: str) -> Selector | SelectorError:
    from .parser import parse  # imports lark

    try:
        return Selector(parse(text), text)
    except SelectorError as exc:
        return exc.with_traceback(None)


#: a header's name that needs no quotes as a whole expression; ``a - b`` with spaces is a subtraction
_HEADER_NAME = re.compile(r"[^\W\d][\w$.-]*")


def is_header_name(text: str) -> bool:
    """Return True if an expression is only the name of a header, without quotes."""
    return _HEADER_NAME.fullmatch(text) is not None


def compile_expression(text: str) -> Callable[[Headers], str | None]:
    """Compile the name of a header, or an expression, to a function from headers to a text; None stands for NULL.

    The function never raises an exception.

    Raises:
        SelectorError: the text is neither, with the position.
        RequestError: it is not a text.
    """
    if not isinstance(text, str):
        raise RequestError(f"an expression must be a str, not {type(text).__name__}")
    if is_header_name(text):
        return compile_text(Header(text))
    from .parser import parse_expression  # imports lark

    return compile_text(parse_expression(text))


#: limit for the characters of a part's text and of a header's value
MAX_SHOWN = 200
#: limit for the parts that are explained; the others are only counted
MAX_PARTS = 500

_WORDS = {True: "true", False: "false", None: "unknown"}


class Explanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Condition with its value (True, False or None for unknown), the headers that it reads, and its parts.

    ``omitted`` is the number of parts that are not shown.
    """

    text: str
    value: bool | None
    headers: dict[str, str | None] = {}
    parts: tuple[Explanation, ...] = ()
    omitted: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as plain data, for the wire and for JSON."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        if self.parts:  # a list, as in the wire form and in JSON
            data["parts"] = [part.to_dict() for part in self.parts]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Explanation:
        return msgspec.convert(data, cls)

    def __str__(self) -> str:
        return "\n".join(self._lines(""))

    def _lines(self, indent: str) -> list[str]:
        values_read = ", ".join(f"{name} is {_shown(value)}" for name, value in self.headers.items())
        lines = [f"{indent}{_WORDS[self.value]}: {self.text}" + (f"   ({values_read})" if values_read else "")]
        for part in self.parts:
            lines += part._lines(indent + "  ")
        return lines + ([f"{indent}  … and {self.omitted} more"] if self.omitted else [])


def _shown(value: str | None) -> str:
    if value is None:
        return "missing"
    return value if number_of(value) is not None or boolean_of(value) is not None else repr(value)


def explain(node: Condition, headers: Mapping[str, str], max_parts: int = MAX_PARTS) -> Explanation:
    """Explain a condition and its parts for these headers, at most ``max_parts`` of them."""
    return _explain(node, headers, [max_parts])


def _explain(node: Condition, headers: Mapping[str, str], left: list[int]) -> Explanation:
    left[0] -= 1
    below: tuple[Condition, ...] = ()
    if isinstance(node, Logical):
        below = node.parts
    elif isinstance(node, Not):
        below = (node.part,)
    parts = []
    for part in below:
        if left[0] <= 0:
            break
        parts.append(_explain(part, headers, left))
    # the explanations of the parts have their values, so each part is evaluated once
    values = [part.value for part in parts] + [_value(part, headers) for part in below[len(parts) :]]
    value = _combined(node, values) if below else _value(node, headers)
    values_read = {} if below or isinstance(node, Boolean) else _headers_read(node, headers)
    return Explanation(_cut(text_of(node)), value, values_read, tuple(parts), len(below) - len(parts))


def _combined(node: Condition, values: list[bool | None]) -> bool | None:
    """Return the value of an AND, an OR or a NOT from the values of its parts."""
    if isinstance(node, Not):
        return None if values[0] is None else not values[0]
    decisive = isinstance(node, Logical) and node.operator == "OR"
    if decisive in values:
        return decisive
    return None if None in values else not decisive


def _value(node: Condition, headers: Mapping[str, str]) -> bool | None:
    """Return True, False, or None for unknown."""
    if compile_condition(node)(headers):
        return True
    return False if compile_condition(node, truth=False)(headers) else None


def _headers_read(node: Node, headers: Mapping[str, str]) -> dict[str, str | None]:
    values = ((name, headers.get(name)) for name in headers_of(node))
    return {name: None if value is None else _cut(value) for name, value in values}


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
