"""A selector, ready to be asked."""

from __future__ import annotations

from functools import cached_property, lru_cache

from ..errors import RequestError, SelectorError
from .compiler import Headers, Predicate, compile_condition
from .explain import Explanation, explain
from .tree import Condition, headers_of, text_of


class Selector:
    """A filter over the headers of messages.

    Attributes:
        text: as it was given.
        condition: the tree (:mod:`.nodes`).
        matches: ``matches(headers)``: whether it is true of these headers; unknown is no match. Never raises.
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
    def _is_false(self) -> Predicate:
        return compile_condition(self.condition, wanted=False)

    def evaluate(self, headers: Headers) -> bool | None:
        """True, False, or None for unknown."""
        return True if self.matches(headers) else False if self._is_false(headers) else None

    def explain(self, headers: Headers) -> Explanation:
        """What each part of it is for these headers."""
        return explain(self.condition, headers)

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"


def compile_selector(text: str, *, stored: bool = False) -> Selector:
    """The selector that a text is.

    Args:
        stored: the text is that of a queue's config record, so it may be as long as the record can hold. Parsing takes
            some tenths of a second then, where it is some tens of milliseconds at most otherwise.

    Raises:
        SelectorError: it is none; the error says where.
        RequestError: it is no text.
    """
    if not isinstance(text, str):
        raise RequestError(f"a filter is a text, not {type(text).__name__}")
    found = _compile(text, stored)
    if isinstance(found, SelectorError):
        raise SelectorError(found.text, **found.values)
    return found


def precompile(text: str) -> None:
    """Compile a selector ahead, in any thread: the next :func:`compile_selector` of this text takes no time."""
    _compile(text, False)


@lru_cache(maxsize=16)  # a declaration compiles its filter once to check it and once to use it
def _compile(text: str, stored: bool) -> Selector | SelectorError:
    from .parser import parse  # which imports lark

    try:
        return Selector(parse(text, stored=stored), text)
    except SelectorError as exc:
        return exc.with_traceback(None)
