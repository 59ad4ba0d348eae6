"""Client for task results: stores, reads and watches them, and counts the parts of chords.

All methods may be used from several threads. One thread at a time waits for the changes that the broker pushes, and
processes them for all. After a fork the child opens its own connection and continues to watch its parent's results.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..errors import ConnectionInUse, ConnectionLost, CorruptRecord, OpenDataError, ProtocolError
from ..protocol import messages as m
from ..url import Address
from .client_clock import SYSTEM, ClientClock
from .connection_options import DEFAULTS, Options
from .late_patching import renew_after_patching
from .session.broker_connection import BrokerConnection

#: number of tasks that this process remembers as recently sent
_MAX_SENT = 10_000
#: The broker looks for results of such tasks only in memory. If none arrives within these seconds, it also searches the
#: store, as an id may have been used before.
_LOOK_SECONDS = 0.1
#: limit for the names in one request
_NAMES = 10_000

#: names and values of results that changed; the error of a damaged one
Changes = list[tuple[bytes, bytes | CorruptRecord]]


class ResultClient:
    """Client for the results of one broker: the first of ``addresses`` that answers."""

    def __init__(
        self, addresses: Sequence[Address], options: Options = DEFAULTS, *, clock: ClientClock = SYSTEM
    ) -> None:
        self._addresses = list(addresses)
        self._options = options
        self._clock = clock
        self._watched: dict[bytes, None] = {}
        self._to_watch: dict[bytes, None] = {}
        self._to_unwatch: dict[bytes, None] = {}
        self._sent_at: OrderedDict[bytes, float] = OrderedDict()
        self._looked_up_in_memory: dict[bytes, None] = {}
        self.after_fork_in_child()
        self._connection = self._new()
        _clients.add(self)

    def after_fork_in_child(self) -> None:
        """Replace locks and marks of threads that do not exist in the child."""
        self._turn = threading.Condition()
        self._reading = 0  # id of the thread that waits for the broker
        self._drains = 0
        self._drains_of_thread = threading.local()

    # ------------------------------------------------------------ the connection
    def _new(self) -> BrokerConnection:
        owner = weakref.ref(self)  # so that the connection does not keep its owner alive

        def watched() -> list[m.WatchResults]:
            client = owner()
            return [] if client is None else client.watch_messages()

        connection = BrokerConnection(self._addresses[0], self._options, clock=self._clock, more=watched)
        # Not __del__: in a garbage cycle the socket's own finalizer might run first, and warn.
        self._finalizer = weakref.finalize(self, connection.abandon)
        self._finalizer.atexit = False  # a greenlet may still be waiting on it
        return connection

    def _usable(self) -> BrokerConnection:
        """Return the connection; a new connection if the last one was closed permanently."""
        with self._turn:
            if self._connection.closed:
                self._finalizer.detach()
                self._connection = self._new()
            return self._connection

    def _use(self, action: Callable[[BrokerConnection], Any]) -> Any:
        """Call the function with the connection; if its broker is unreachable, with a connection to the next address.

        Raises ConnectionLost if no broker answers.
        """
        for _ in self._addresses[1:]:
            connection = self._usable()
            try:
                return action(connection)
            except ConnectionLost:
                with self._turn:
                    if self._connection is connection:
                        connection.abandon()
                        self._addresses.append(self._addresses.pop(0))
        return action(self._usable())

    def _call(self, message: Any) -> Any:
        return self._use(lambda connection: connection.call(message))

    def close(self) -> None:
        """End the session without waiting for the broker."""
        self._connection.abandon()

    # ------------------------------------------------------------ results
    def store(self, message: m.StoreResult) -> m.ResultStored:
        """Store a result, a part of a chord, or both, and wait for the commit. A resume does not store them twice.

        Raises:
            MessageTooLarge: it is over the broker's limit; nothing was stored.
            ConnectionLost, StoreFull, RequestError: it was not stored, or the reply was lost.
        """
        answer: m.ResultStored = self._use(lambda connection: _store(connection, message))
        return answer

    def get(self, names: list[bytes]) -> list[bytes | None]:
        """Return the values of these results; None for a result that does not exist."""
        values: list[bytes | None] = []
        while len(values) < len(names):
            rest = names[len(values) : len(values) + _NAMES]
            answer: m.Results = self._call(m.GetResults(0, rest))
            if not answer.values:
                raise ProtocolError("the broker answered without any result")
            values += answer.values
        return values

    def forget(self, names: list[bytes]) -> None:
        self._call(m.ForgetResults(0, names))

    # ------------------------------------------------------------ chords
    def open_chord(self, message: m.OpenChord) -> None:
        self._call(message)

    def chord_parts(self, chord: bytes) -> tuple[bytes, list[tuple[bytes, bytes]]]:
        """Return a chord's header and its parts (member, value), ordered by index."""
        parts: list[tuple[bytes, bytes]] = []
        while True:
            answer: m.ChordParts = self._call(m.GetChord(0, chord, len(parts)))
            parts += answer.parts
            if not answer.parts or len(parts) >= answer.count:
                return answer.header, parts

    def close_chord(self, chord: bytes) -> None:
        """Report to the broker that the chord's callback was sent."""
        self._call(m.CloseChord(0, chord))

    # ------------------------------------------------------------ watching
    def note_sent(self, name: bytes) -> None:
        """Record that a task is about to be sent, so it has no stored result, unless its id was used before."""
        self._sent_at[name] = self._clock.monotonic()
        if len(self._sent_at) > _MAX_SENT:
            self._sent_at.popitem(last=False)

    def watch(self, name: bytes) -> None:
        """Watch a result, which :meth:`drain` will report. The request is sent by the next or the running drain."""
        self._to_unwatch.pop(name, None)
        if name not in self._watched:
            self._to_watch[name] = None
            if self._reading:
                self.flush()

    def unwatch(self, name: bytes) -> None:
        """Stop watching a result. Never blocks: the garbage collector may call it."""
        self._to_watch.pop(name, None)
        if self._watched.pop(name, 0) is None:
            self._to_unwatch[name] = None

    def flush(self) -> None:
        """Send the pending watch and unwatch requests to the broker."""
        if self._to_watch:
            names = list(self._to_watch)
            self._watched.update(dict.fromkeys(names))
            for name in names:
                self._to_watch.pop(name, None)
            self._use(lambda connection: _send(connection, self._messages(names)))
        if self._to_unwatch:
            names = list(self._to_unwatch)
            for name in names:
                self._to_unwatch.pop(name, None)
            self._use(lambda connection: _send(connection, [m.UnwatchResults(0, names)]))

    def drain(self, timeout: float | None, take: Callable[[Changes], None]) -> None:
        """Wait until this thread, or another thread that is already waiting, has processed changes.

        The call does not wait if another thread has processed changes since this thread's last call.

        Raises:
            socket.timeout: no changes in time.
            ConnectionLost: the broker is unreachable.
        """
        self.flush()
        with self._turn:
            if self._drains != getattr(self._drains_of_thread, "count", None):
                self._drains_of_thread.count = self._drains
                return
            if self._reading and self._reading != threading.get_ident():
                if not self._turn.wait(timeout):
                    raise TimeoutError("no result in time")
                self._drains_of_thread.count = self._drains
                return
            if self._reading:
                raise ConnectionInUse(
                    "this wait for a result interrupted another one in its thread, in a signal handler or a finalizer: "
                    "wait after the handler, or in another thread"
                )
            self._reading = threading.get_ident()
        try:
            take(self._receive(timeout))
        finally:
            with self._turn:
                self._drains += 1
                self._drains_of_thread.count = self._drains
                self._reading = 0
                self._turn.notify_all()

    def _receive(self, timeout: float | None) -> Changes:
        if not self._looked_up_in_memory:
            return self._receive_pushed(timeout)
        short = _LOOK_SECONDS if timeout is None else min(timeout, _LOOK_SECONDS)
        try:
            return self._receive_pushed(short)
        except TimeoutError:
            if changes := self._look_in_store():
                return changes
            if timeout is not None and timeout <= short:
                raise
        return self._receive_pushed(None if timeout is None else timeout - short)

    def _look_in_store(self) -> Changes:
        """Return stored results of the tasks for which the broker has only looked in its memory."""
        recent = list(self._looked_up_in_memory)  # other threads add to it
        for name in recent:
            self._looked_up_in_memory.pop(name, None)
        return self._read([name for name in recent if name in self._watched])

    def _read(self, names: list[bytes]) -> Changes:
        """Return stored results; a damaged one does not keep back the others."""
        try:
            return [(name, value) for name, value in zip(names, self.get(names), strict=True) if value is not None]
        except CorruptRecord as exc:
            return [(names[0], exc)] if len(names) == 1 else [each for name in names for each in self._read([name])]

    def _receive_pushed(self, timeout: float | None) -> Changes:
        connection: BrokerConnection = self._use(lambda connection: _drain(connection, timeout))
        changes: Changes = []
        large: list[bytes] = []
        while connection.events:
            message: Any = connection.events.popleft()
            for name, value, ended in message.results:
                if ended:
                    self._watched.pop(name, None)
                    self._looked_up_in_memory.pop(name, None)
                if value is None:
                    large.append(name)
                else:
                    changes.append((name, value))
        try:
            return changes + self._read(large)
        except OpenDataError:  # the caller receives none of the changes: the broker must push them again
            self._to_watch.update(dict.fromkeys([name for name, _value in changes] + large))
            raise

    def watch_messages(self) -> list[m.WatchResults]:
        """Return the messages that every new socket begins with.

        They make the broker search its store, because a new socket may lead to another process than the last one.
        """
        names = list(self._watched)
        return [m.WatchResults(0, names[start : start + _NAMES]) for start in range(0, len(names), _NAMES)]

    def _messages(self, names: list[bytes]) -> list[m.WatchResults]:
        """Return the messages that watch new results; those of recently sent tasks are looked up in memory only."""
        new = [name for name in names if name in self._sent_at]
        old = [name for name in names if name not in self._sent_at]
        self._looked_up_in_memory.update(dict.fromkeys(new))
        return [
            m.WatchResults(0, part[start : start + _NAMES], self._age_ms(part[start : start + _NAMES]))
            for part in (new, old)
            for start in range(0, len(part), _NAMES)
        ]

    def _age_ms(self, names: list[bytes]) -> int:
        """Return the time since the first of these tasks was sent, in ms, rounded up; -1 means unknown."""
        try:
            oldest = min(self._sent_at[name] for name in names)
        except (KeyError, ValueError):
            return -1
        return int(1000 * (self._clock.monotonic() - oldest)) + 1


def _store(connection: BrokerConnection, message: m.StoreResult) -> m.ResultStored:
    connection = connection.free()
    with connection.link.lock:
        connection.io.check_size(len(message.value), "result", "store large data elsewhere and return a reference")
    answer: m.ResultStored = connection.call(message)
    return answer


def _send(connection: BrokerConnection, messages: Sequence[Any]) -> None:
    """Send messages that have no reply. If this call opens the connection, its socket has begun with them already."""
    link = connection.link
    if link.reentrance.is_entered():
        return link.reentrance.later(partial(_send, connection, messages))
    with link.reentrance, link.lock:
        if link.current is None:
            link.ensure_open()
            return
    for message in messages:
        connection.io.send(message)


def _drain(connection: BrokerConnection, timeout: float | None) -> BrokerConnection:
    connection.drain(timeout)
    return connection


_clients: weakref.WeakSet[ResultClient] = weakref.WeakSet()


def _renew_locks() -> None:
    for client in list(_clients):
        client.after_fork_in_child()


def _after_fork_in_child() -> None:
    _renew_locks()
    renew_after_patching(_renew_locks)


os.register_at_fork(after_in_child=_after_fork_in_child)
