"""Compiled filter: a text or a tree as a function over headers."""

from __future__ import annotations

from functools import cached_property, lru_cache

from ..errors import RequestError, SelectorError
from .compiler import Headers, Predicate, compile_condition, most_steps
from .explain import Explanation, explain
from .tree import Condition, headers_of, text_of


class Selector:
    """Filter over the headers of messages.

    Attributes:
        text: the text of the filter.
        condition: the tree (:mod:`.tree`).
        matches: ``matches(headers)`` returns True if the filter is true for these headers; unknown does not match.
            Never raises.
    """

    def __init__(self, condition: Condition, text: str | None = None) -> None:
        self.condition = condition
        self.text = text_of(condition) if text is None else text
        self.matches: Predicate = compile_condition(condition)

    @cached_property
    def names(self) -> frozenset[str]:
        """Headers that it reads."""
        return frozenset(headers_of(self.condition))

    @cached_property
    def steps(self) -> int:
        """Approximate maximum of Python steps for its evaluation with any message."""
        return most_steps(self.condition)

    def explain(self, headers: Headers) -> Explanation:
        """Return the value of each of its parts for these headers."""
        return explain(self.condition, headers)

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"


def compile_selector(text: str) -> Selector:
    """Compile the text of a filter.

    Raises:
        SelectorError: the text is not a valid filter; the error has the position.
        RequestError: the argument is not a text.
    """
    if not isinstance(text, str):
        raise RequestError(f"a filter must be a str, not {type(text).__name__}")
    result = _compile(text)
    if isinstance(result, SelectorError):
        raise SelectorError(result.text, **result.values)
    return result


def precompile(text: str) -> None:
    """Compile a filter in advance, in any thread, so that the next :func:`compile_selector` of it takes no time."""
    _compile(text)


@lru_cache(maxsize=16)  # a declaration compiles its filter once to validate it and once to use it
def _compile(text: str) -> Selector | SelectorError:
    from .parser import parse  # imports lark

    try:
        return Selector(parse(text), text)
    except SelectorError as exc:
        return exc.with_traceback(None)
