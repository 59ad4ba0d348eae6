"""Dispatch of a message to its handler: the context of a call, and the registry of the handlers.

A handler is a method of a class of calls. :func:`handles` declares its message, whose :class:`.Operation` has the
permission and the rules for running it; :func:`bind_handlers` makes the table of an instance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial, wraps
from inspect import iscoroutinefunction, isfunction
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

from ...errors import AccessRefused, NotFound, RequestError
from ...protocol import messages as m
from ...protocol.messages.message_base import WireMessage
from ...protocol.permissions import AccessRights
from ..access.audit import Audit
from ..delivery.background import Background
from ..delivery.outbox import Outbox
from ..delivery.queue_registry import Queues
from ..model.name_checks import check_name
from ..model.queue import BrokerQueue
from ..model.sessions import Session, SessionConnection


def check_range(what: str, value: int, low: int, high: int) -> None:
    """Raise :class:`RequestError` for a value of a call that is out of range."""
    if not low <= value <= high:
        raise RequestError(f"{what} is {low} to {high}, not {value}", value=value, limit=high)


Result = TypeVar("Result")


class Context:
    """Context of one session's calls."""

    __slots__ = (
        "_audit", "_background", "_instance_name", "_outbox", "_queues", "answer_once", "deletion", "repeat", "reply",
        "run", "session", "waiting",
    )  # fmt: skip

    def __init__(
        self, session: Session, outbox: Outbox, background: Background, queues: Queues, instance_name: str, audit: Audit
    ) -> None:
        self.session = session
        self.reply = partial(outbox.reply, session)  # sends a reply to the client after the next commit
        #: run, repeat, answer_once: those of :class:`.Background`, for this session
        self.run = partial(background.run, session)
        self.repeat = partial(background.repeat, session)
        self.answer_once = partial(background.answer, session)
        self._outbox, self._background, self._queues = outbox, background, queues
        self._instance_name, self._audit = instance_name, audit
        self.deletion: asyncio.Lock = queues.lock  # held while a queue is deleted or purged, which delays definitions
        self.waiting = 0  # the number of the client's definitions that wait for ``deletion``

    def hold(self, rid: int, work: Coroutine[Any, Any, WireMessage | None]) -> None:
        """Run a call in the background; the next messages of its connection wait for its end."""
        connection = self.session.connection
        if connection is not None:
            connection.hold(True)
            work = _held(connection, work)
        self.run(rid, work)

    def welcome(self, message: WireMessage, *, resumes: bool) -> None:
        """Reply to the greeting before any other message is sent; the reply to a resume also confirms settlements."""
        if not resumes:
            self._outbox.send_now(self.session, message)
            return
        self.session.replies.insert(0, message)
        self._outbox.answer_now(self.session)

    def refuse(self, rid: int, exc: Exception, *, now: bool = False) -> None:
        """Reply to a call that failed; with ``now``, do not wait for a commit, because none is possible."""
        refusal = self._background.refusal(self.session, rid, exc)
        if refusal is not None and now:
            self._outbox.send_now(self.session, refusal)
        elif refusal is not None:
            self.reply(refusal)

    def note(self, message: m.DeclareQueue | m.DeclareExchange | m.Bind) -> None:
        """Record a declaration of a client that is notified of the object's deletion."""
        if self.session.declared is not None:
            self.session.declared.note(message)

    def audit(self, text: str, *args: object, **fields: Any) -> None:
        """Write the client's change to the audit log; see :meth:`.Audit.changed`."""
        session = self.session
        self._audit.changed(session.acting_as or session.user.name, session.described, text, *args, **fields)

    def queue(self, name: str) -> BrokerQueue:
        """Return a queue that this client may use.

        Raises:
            NotFound: there is no such queue.
            RequestError: the name is not valid.
            AccessRefused: the queue is exclusive to another connection.
        """
        queue = self._queues.get(name)
        if queue is None or queue.deleting:
            check_name(name, "queue")
            raise NotFound(f"no queue {name!r} in instance {self._instance_name!r}: declare it first", queue=name)
        self.check_owner(queue)
        return queue

    def check_exists(self, queue: BrokerQueue) -> None:
        """Raise :class:`NotFound` if a queue was deleted while the call waited."""
        if self.queue(queue.name) is not queue:
            raise NotFound(f"queue {queue.name!r} was deleted during the call: try again", queue=queue.name)

    def check_owner(self, queue: BrokerQueue) -> None:
        """Raise :class:`AccessRefused` for a queue that is exclusive to another connection."""
        owner = queue.owner
        if owner is not None and (owner.client != self.session.client or owner.user.name != self.session.user.name):
            raise AccessRefused(f"queue {queue.name!r} is exclusive to another connection", queue=queue.name)


async def _held(connection: SessionConnection, work: Coroutine[Any, Any, Result]) -> Result:
    try:
        return await work
    finally:
        connection.hold(False)


Self = TypeVar("Self")
Call = TypeVar("Call", bound=WireMessage)

#: a handler; a coroutine runs in the background, and its result is the reply
Method = Callable[[Self, Context, Call], Coroutine[Any, Any, WireMessage | None] | None]
Filter = Callable[[Any, Call], str | None]


@dataclass(frozen=True, slots=True)
class Handler:
    """Handler of a message, and the attributes of its :class:`.Operation` that the connection uses."""

    run: Callable[[Context, Any], object]  # handles the message
    check: Callable[[AccessRights, Any], None]  # checks the client's permission, before any other work
    #: returns the text of the message's filter, which is compiled first; None if the message has no filter
    filter_of: Callable[[Any], str | None] | None
    is_query: bool
    stores: bool
    overtakes: bool
    is_plain: bool  # True if the call may run immediately: it is no query, has no filter and stores nothing


@dataclass_transform(frozen_default=True)
class BrokerCalls:
    """Base class of handlers, whose fields are their components, as in a frozen dataclass."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


_marks: dict[Callable[..., object], tuple[type[WireMessage], Filter[Any] | None]] = {}


def handles(
    message: type[Call], *, filter_of: Filter[Call] | None = None
) -> Callable[[Method[Self, Call]], Method[Self, Call]]:
    """Make a method the handler of a message. A coroutine runs in the background; see :meth:`.Background.run`.

    ``filter_of`` replaces :attr:`.Operation.filter_field`; it is called with the object and the message.
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
        if call.waiting or call.deletion.locked():  # a client's definitions run in order
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


def bind_handlers(*objects: BrokerCalls) -> dict[type[WireMessage], Handler]:
    """Return the handlers among these objects' methods, by message; raise ValueError if a message has two."""
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
                run=method.__get__(calls),
                check=operation.permission.check,
                filter_of=filter_of,
                is_query=operation.is_query,
                stores=operation.stores,
                overtakes=operation.overtakes,
                is_plain=is_plain,
            )
    return handlers
