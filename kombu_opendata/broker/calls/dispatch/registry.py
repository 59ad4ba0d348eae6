"""The registry of the messages' handlers.

A handler is a method of a class of calls. :func:`handles` declares its message, and how such a call is run;
:func:`bind_handlers` makes the table of an instance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import wraps
from inspect import iscoroutinefunction, isfunction
from typing import Any, TypeVar

from ....protocol.messages.message_base import WireMessage
from ...model.sessions import SessionConnection
from .context import Context
from .overload import OVERTAKING, STORING
from .required_rights import Needs

Calls = TypeVar("Calls")
Call = TypeVar("Call", bound=WireMessage)

#: a handler; a coroutine runs in the background, and its result is the reply
Method = Callable[[Calls, Context, Call], Coroutine[Any, Any, WireMessage | None] | None]


@dataclass(frozen=True, slots=True)
class Handler:
    """The handler of a message, and the rules for running it.

    Attributes:
        run: handles the message.
        needs: checks the client's permission, before anything else is done.
        is_query: its reply may be far larger than the message, so the number of such calls in progress is limited.
        filter_of: returns the text of the message's filter, which is compiled first; None if it can't have one.
        stores: it puts messages or results into memory, so it waits while that is full; see :mod:`.overload`.
        overtakes: it runs while publishes of its connection wait.
        is_plain: it may run immediately: it is no query, has no filter and stores nothing.
    """

    run: Callable[[Context, Any], object]
    needs: Needs
    is_query: bool
    filter_of: Callable[[Any], str | None] | None
    stores: bool
    overtakes: bool
    is_plain: bool


@dataclass(frozen=True)
class _Mark:
    """The arguments of a method's decorator."""

    message: type[WireMessage]
    needs: Needs
    query: bool
    filter_of: Callable[[Any, Any], str | None] | None


_marks: dict[Callable[..., object], _Mark] = {}


def handles(
    message: type[Call],
    *,
    needs: Needs,
    query: bool = False,
    definition: bool = False,
    once: bool = False,
    filter_of: Callable[[Any, Call], str | None] | None = None,
) -> Callable[[Method[Calls, Call]], Method[Calls, Call]]:
    """Make a method the handler of a message. A coroutine runs in the background; see :meth:`.Background.run`.

    Args:
        needs: checks the permission that the call needs, first.
        query: see :attr:`Handler.is_query`.
        filter_of: see :attr:`Handler.filter_of`; called with the object and the message.
        definition: the call waits while a queue is being deleted.
        once: the call changes something, so a client that repeats it after a reconnect gets the same reply.
    """

    def mark(method: Method[Calls, Call]) -> Method[Calls, Call]:
        run = method
        if iscoroutinefunction(method):
            run = _in_background(method)
        elif definition:
            run = _after_deletions(method)
        elif once:
            run = _once(method)
        _marks[run] = _Mark(message, needs, query, filter_of)
        return run

    return mark


def _in_background(method: Callable[[Any, Context, Any], Any]) -> Callable[[Any, Context, Any], None]:
    @wraps(method)
    def begin(calls: Any, call: Context, message: Any) -> None:
        call.run(message.rid, method(calls, call, message))

    return begin


def _after_deletions(method: Callable[[Any, Context, Any], object]) -> Callable[[Any, Context, Any], None]:
    @wraps(method)
    def define(calls: Any, call: Context, message: Any) -> None:
        if call.waiting or call.deletion.locked():  # a client's definitions keep their order
            call.waiting += 1
            call.run(message.rid, define_later(calls, call, message, call.session.connection))
        else:
            method(calls, call, message)

    async def define_later(calls: Any, call: Context, message: Any, asked_on: SessionConnection | None) -> None:
        async with call.deletion:
            call.waiting -= 1
            if call.session.connection is asked_on:  # after a reconnect the client repeats the call
                method(calls, call, message)
                await asyncio.sleep(0)

    return define


def _once(method: Callable[[Any, Context, Any], object]) -> Callable[[Any, Context, Any], None]:
    @wraps(method)
    def run_once(calls: Any, call: Context, message: Any) -> None:
        if not call.repeat(message.rid):
            method(calls, call, message)

    return run_once


def bind_handlers(*objects: object) -> dict[type[WireMessage], Handler]:
    """Return the handlers that are methods of these objects, by message.

    Raises:
        ValueError: a message has two handlers.
    """
    handlers: dict[type[WireMessage], Handler] = {}
    for calls in objects:
        for method in filter(isfunction, vars(type(calls)).values()):
            mark = _marks.get(method)
            if mark is None:
                continue
            if mark.message in handlers:
                raise ValueError(f"{mark.message.__name__} has two handlers")
            filter_of = mark.filter_of.__get__(calls) if mark.filter_of is not None else None
            stores, overtakes = mark.message in STORING, mark.message in OVERTAKING
            is_plain = not mark.query and filter_of is None and not stores
            run = method.__get__(calls)
            handlers[mark.message] = Handler(run, mark.needs, mark.query, filter_of, stores, overtakes, is_plain)
    return handlers
