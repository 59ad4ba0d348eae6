"""The registry of the messages' handlers.

A handler is a method of a class of calls. :func:`handles` declares its message, whose :class:`.Operation` has the
permission and the rules for running it; :func:`bind_handlers` makes the table of an instance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import wraps
from inspect import iscoroutinefunction, isfunction
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

from ....protocol.messages.message_base import WireMessage
from ....protocol.permissions import AccessRights
from ...model.sessions import SessionConnection
from .context import Context

Self = TypeVar("Self")
Call = TypeVar("Call", bound=WireMessage)

#: a handler; a coroutine runs in the background, and its result is the reply
Method = Callable[[Self, Context, Call], Coroutine[Any, Any, WireMessage | None] | None]
Filter = Callable[[Any, Call], str | None]


@dataclass(frozen=True, slots=True)
class Handler:
    """The handler of a message, and what the connection needs to know of its :class:`.Operation`.

    Attributes:
        run: handles the message.
        check: checks the client's permission, before anything else is done.
        filter_of: returns the text of the message's filter, which is compiled first; None if it can't have one.
        is_plain: it may run immediately: it is no query, has no filter and stores nothing.
    """

    run: Callable[[Context, Any], object]
    check: Callable[[AccessRights, Any], None]
    filter_of: Callable[[Any], str | None] | None
    is_query: bool
    stores: bool
    overtakes: bool
    is_plain: bool


@dataclass_transform(frozen_default=True)
class Calls:
    """Base class of handlers, whose fields are their components, as in a frozen dataclass."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


_marks: dict[Callable[..., object], tuple[type[WireMessage], Filter[Any] | None]] = {}


def handles(
    message: type[Call], *, filter_of: Filter[Call] | None = None
) -> Callable[[Method[Self, Call]], Method[Self, Call]]:
    """Make a method the handler of a message. A coroutine runs in the background; see :meth:`.Background.run`.

    Args:
        filter_of: replaces :attr:`.Operation.filter_field`; called with the object and the message.
    """

    def mark(method: Method[Self, Call]) -> Method[Self, Call]:
        run = method
        if iscoroutinefunction(method):
            run = _in_background(method)
        elif message.operation.is_definition:
            run = _after_deletions(method)
        elif message.operation.runs_once:
            run = _once(method)
        _marks[run] = message, filter_of
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

    async def define_later(calls: Any, call: Context, message: Any, connection: SessionConnection | None) -> None:
        async with call.deletion:
            call.waiting -= 1
            if call.session.connection is connection:  # after a reconnect the client repeats the call
                method(calls, call, message)
                await asyncio.sleep(0)

    return define


def _once(method: Callable[[Any, Context, Any], object]) -> Callable[[Any, Context, Any], None]:
    @wraps(method)
    def run_once(calls: Any, call: Context, message: Any) -> None:
        if not call.repeat(message.rid):
            method(calls, call, message)

    return run_once


def bind_handlers(*objects: Calls) -> dict[type[WireMessage], Handler]:
    """Return the handlers that are methods of these objects, by message.

    Raises:
        ValueError: a message has two handlers.
    """
    handlers: dict[type[WireMessage], Handler] = {}
    for calls in objects:
        for method in filter(isfunction, vars(type(calls)).values()):
            if method not in _marks:
                continue
            message, special_filter = _marks[method]
            if message in handlers:
                raise ValueError(f"{message.__name__} has two handlers")
            operation, filter_of = message.operation, None
            if special_filter is not None:
                filter_of = special_filter.__get__(calls)
            elif operation.filter_field:
                filter_of = attrgetter(operation.filter_field)
            is_plain = not operation.is_query and filter_of is None and not operation.stores
            handlers[message] = Handler(
                method.__get__(calls), operation.permission.check, filter_of, operation.is_query, operation.stores,
                operation.overtakes, is_plain,
            )  # fmt: skip
    return handlers
