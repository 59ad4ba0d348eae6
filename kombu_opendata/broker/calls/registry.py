"""Which handler each message has.

A handler is a method of a class of calls. :func:`handles` says which message it is for, and what the connection has to
know of such calls before it runs one; :func:`bind_handlers` makes the table of an instance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from ...protocol.message_base import Message
from .context import Context

Calls = TypeVar("Calls")
Call = TypeVar("Call", bound=Message)


class Special(NamedTuple):
    """What is special about a call.

    Attributes:
        query: its answer may be far larger than the message: a client has only so many of these under way.
        definition: it waits for the deletion of a queue that is under way.
        once: it changes something: a client that asks again after a reconnect gets the same answer.
        filter_of: the text of a filter in the message that may have to be compiled first.
    """

    query: bool = False
    definition: bool = False
    once: bool = False
    filter_of: Callable[..., str | None] | None = None


@dataclass(frozen=True, slots=True)
class Handler:
    """How a message is handled; ``special`` is None for most."""

    run: Callable[[Context, Any], None]
    special: Special | None


_marks: dict[Callable[..., None], tuple[type[Message], Special]] = {}


def handles(
    message: type[Call],
    *,
    query: bool = False,
    definition: bool = False,
    once: bool = False,
    filter_of: Callable[[Any, Call], str | None] | None = None,
) -> Callable[[Callable[[Calls, Context, Call], None]], Callable[[Calls, Context, Call], None]]:
    """Make a method the handler of a message; :class:`Special` says what the flags mean.

    Args:
        filter_of: another method of the class.
    """

    def mark(method: Callable[[Calls, Context, Call], None]) -> Callable[[Calls, Context, Call], None]:
        _marks[method] = message, Special(query, definition, once, filter_of)
        return method

    return mark


def bind_handlers(*objects: object) -> dict[type[Message], Handler]:
    """The handlers that are methods of these objects, by message.

    Raises:
        ValueError: a message has two.
    """
    found: dict[type[Message], Handler] = {}
    for calls in objects:
        for method in filter(_marks.__contains__, vars(type(calls)).values()):
            message, special = _marks[method]
            if message in found:
                raise ValueError(f"{message.__name__} has two handlers")
            if special.filter_of is not None:
                special = special._replace(filter_of=special.filter_of.__get__(calls))
            found[message] = Handler(method.__get__(calls), special if special != Special() else None)
    return found
