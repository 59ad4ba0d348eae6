"""A compiled filter: a text or a tree as a function over headers."""

from __future__ import annotations

from functools import cached_property, lru_cache

from ..errors import RequestError, SelectorError
from .compiler import Headers, Predicate, compile_condition, most_steps
from .explain import Explanation, explain
from .tree import Condition, headers_of, text_of


class Selector:
    """A filter over the headers of messages.

    Attributes:
        text: the text of the filter.
        condition: the tree (:mod:`.tree`).
        matches: ``matches(headers)`` says whether it is true for these headers; unknown does not match. Never raises.
    """

    def __init__(self, condition: Condition, text: str | None = None) -> None:
        self.condition = condition
        self.text = text_of(condition) if text is None else text
        self.matches: Predicate = compile_condition(condition)

    @cached_property
    def names(self) -> frozenset[str]:
        """The headers that it reads."""
        return frozenset(headers_of(self.condition))

    @cached_property
    def steps(self) -> int:
        """The most steps of Python that evaluating it may take for any message, about."""
        return most_steps(self.condition)

    def explain(self, headers: Headers) -> Explanation:
        """The value of each of its parts for these headers."""
        return explain(self.condition, headers)

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"


def compile_selector(text: str) -> Selector:
    """Compile the text of a filter.

    Raises:
        SelectorError: it is not a valid filter; the error says where.
        RequestError: it is not a text.
    """
    if not isinstance(text, str):
        raise RequestError(f"a filter must be a str, not {type(text).__name__}")
    found = _compile(text)
    if isinstance(found, SelectorError):
        raise SelectorError(found.text, **found.values)
    return found


def precompile(text: str) -> None:
    """Compile a filter in advance, in any thread, so that the next :func:`compile_selector` of it takes no time."""
    _compile(text)


@lru_cache(maxsize=16)  # a declaration compiles its filter once to check it and once to use it
def _compile(text: str) -> Selector | SelectorError:
    from .parser import parse  # which imports lark

    try:
        return Selector(parse(text), text)
    except SelectorError as exc:
        return exc.with_traceback(None)
