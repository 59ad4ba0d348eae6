"""Which handler each message has.

A handler is a method of a class of calls. :func:`handles` says which message it is for, and how such a call is run;
:func:`bind_handlers` makes the table of an instance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

from ...protocol.message_base import Message
from .context import Context

Calls = TypeVar("Calls")
Call = TypeVar("Call", bound=Message)


@dataclass(frozen=True, slots=True)
class Handler:
    """How a message is handled.

    Attributes:
        run: handles it.
        is_query: its answer may be far larger than the message: a client has only so many of these under way.
        filter_of: the text of a filter in the message that is to be compiled first; None where there is none.
        is_plain: it is no query and has no filter.
    """

    run: Callable[[Context, Any], None]
    is_query: bool
    filter_of: Callable[[Any], str | None] | None
    is_plain: bool


@dataclass(frozen=True)
class _Mark:
    """What was said of a method at its decorator."""

    message: type[Message]
    query: bool
    filter_of: Callable[[Any, Any], str | None] | None


_marks: dict[Callable[..., None], _Mark] = {}


def handles(
    message: type[Call],
    *,
    query: bool = False,
    definition: bool = False,
    once: bool = False,
    filter_of: Callable[[Any, Call], str | None] | None = None,
) -> Callable[[Callable[[Calls, Context, Call], None]], Callable[[Calls, Context, Call], None]]:
    """Make a method the handler of a message.

    Args:
        query, filter_of: see :class:`Handler`; ``filter_of`` is another method of the class.
        definition: it waits for the deletion of a queue that is under way.
        once: it changes something: a client that asks again after a reconnect gets the same answer.
    """

    def mark(method: Callable[[Calls, Context, Call], None]) -> Callable[[Calls, Context, Call], None]:
        run = method
        if definition:
            run = _after_deletions(method)
        if once:
            run = _once(method)
        _marks[run] = _Mark(message, query, filter_of)
        return run

    return mark


def _after_deletions(method: Callable[[Calls, Context, Call], None]) -> Callable[[Calls, Context, Call], None]:
    @wraps(method)
    def define(calls: Calls, call: Context, message: Any) -> None:
        if call.deletion.locked():
            call.run(message.rid, define_later(calls, call, message))
        else:
            method(calls, call, message)

    async def define_later(calls: Calls, call: Context, message: Any) -> None:
        async with call.deletion:
            method(calls, call, message)
            await asyncio.sleep(0)

    return define


def _once(method: Callable[[Calls, Context, Call], None]) -> Callable[[Calls, Context, Call], None]:
    @wraps(method)
    def run_once(calls: Calls, call: Context, message: Any) -> None:
        if not call.repeat(message.rid):
            method(calls, call, message)

    return run_once


def bind_handlers(*objects: object) -> dict[type[Message], Handler]:
    """The handlers that are methods of these objects, by message.

    Raises:
        ValueError: a message has two.
    """
    found: dict[type[Message], Handler] = {}
    for calls in objects:
        for method in filter(_marks.__contains__, vars(type(calls)).values()):
            mark = _marks[method]
            if mark.message in found:
                raise ValueError(f"{mark.message.__name__} has two handlers")
            filter_of = mark.filter_of.__get__(calls) if mark.filter_of is not None else None
            is_plain = not mark.query and filter_of is None
            found[mark.message] = Handler(method.__get__(calls), mark.query, filter_of, is_plain)
    return found
