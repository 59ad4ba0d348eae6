"""Results on the broker's side: stored and pushed to who watches, chords counted and handed out.

What is at hand is answered in the handler; for the rest a task reads the store. Chords: the client whose part completed
one is told so, and sends the callback. Another client that comes with a part of a complete chord (a task delivered
again) is told so only when the first is gone: so the callback is sent, and twice only if its sender died in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import MessageTooLarge, RequestError
from ..protocol import messages as m
from ..storage.records.results import FINAL, INTERIM, NO_INDEX, Result
from ..storage.result_state import ChordState
from .model.sessions import Session
from .outbox import Outbox

if TYPE_CHECKING:
    from .handlers import Handlers

log = logging.getLogger(__name__)

#: of a name of a result, a chord or its member
MAX_NAME_BYTES = 1024
MAX_NAMES = 100_000
#: results that one client may wait for at a time
MAX_WATCHES = 1_000_000
#: of a result's time to live: a hundred years, so that an expiry fits its record
MAX_TTL_MS = 100 * 366 * 86_400_000
_PAGE_BYTES = 4 << 20
#: a larger result is not pushed: who watches it is told to ask for it
_PUSH_BYTES = 64 << 10
#: reads of the store at a time for one call
_READS = 64


class ResultService:
    """Who watches what, and who sends the callback of which chord."""

    def __init__(self, sessions: Mapping[bytes, Session], outbox: Outbox) -> None:
        self._sessions = sessions
        self._outbox = outbox
        self._watchers: dict[bytes, set[Session]] = {}
        self._watched: dict[Session, dict[bytes, bool]] = {}  # and whether the session was told anything of it

    # ------------------------------------------------------------------ watching
    def watch(self, session: Session, name: bytes) -> None:
        self._watchers.setdefault(name, set()).add(session)
        self._watched.setdefault(session, {})[name] = False

    def unwatch(self, session: Session, name: bytes) -> None:
        watchers, watched = self._watchers.get(name), self._watched.get(session)
        if watchers is not None:
            watchers.discard(session)
            if not watchers:
                del self._watchers[name]
        if watched is not None:
            watched.pop(name, None)
            if not watched:
                del self._watched[session]

    def check_room(self, session: Session, names: int) -> None:
        """Refuse more watches than a client may have.

        Raises:
            RequestError: it would have more than :data:`MAX_WATCHES`.
        """
        count = len(self._watched.get(session, ())) + names
        if count > MAX_WATCHES:
            raise RequestError(
                f"a client may wait for {MAX_WATCHES} results at a time, not {count}: forget some first",
                limit=MAX_WATCHES,
            )

    def is_waiting(self, session: Session, name: bytes) -> bool:
        """Whether the session watches this and was told nothing of it yet."""
        return self._watched.get(session, {}).get(name) is False

    def forget_session(self, session: Session) -> None:
        """Its connection is gone; when it comes back, it says again what it watches."""
        for name in list(self._watched.get(session, ())):
            self.unwatch(session, name)

    def changed(self, name: bytes, result: Result) -> None:
        """Tell who watches, after the commit."""
        for session in list(self._watchers.get(name, ())):
            self.push(session, name, result)

    def push(self, session: Session, name: bytes, result: Result) -> None:
        """Tell one session; a result that is no state on the way ends the watch."""
        ends = result.kind != INTERIM
        if ends:
            self.unwatch(session, name)
        else:
            self._watched[session][name] = True
        connection = session.connection
        fits = connection is not None and connection.writable and len(result.value) <= _PUSH_BYTES
        self._outbox.reply(session, m.ResultsChanged([(name, result.value if fits else None, ends)]))

    def claim_callback(self, session: Session, chord: ChordState) -> bool:
        """Whether this session sends the callback of a chord: it is complete, and nobody else is about to."""
        taken = chord.sender is not None and chord.sender != session.id and chord.sender in self._sessions
        if taken or not chord.is_complete:
            return False
        chord.sender = session.id
        return True


# ---------------------------------------------------------------------- the calls
def _check_name(name: bytes, what: str) -> None:
    if not 0 < len(name) <= MAX_NAME_BYTES:
        raise RequestError(f"the name of a {what} has 1 to {MAX_NAME_BYTES} bytes, not {len(name)}")


def _check_names(names: list[bytes]) -> None:
    if len(names) > MAX_NAMES:
        raise RequestError(f"{len(names)} names of results: ask for at most {MAX_NAMES} at a time", limit=MAX_NAMES)
    for name in names:
        _check_name(name, "result")


def _check_ttl(ttl_ms: int) -> None:
    if not 0 <= ttl_ms <= MAX_TTL_MS:
        raise RequestError(f"a time to live of {ttl_ms} ms: 0 is for ever, {MAX_TTL_MS} the longest", value=ttl_ms)


def store_result(self: Handlers, msg: m.StoreResult) -> None:
    size, limit = len(msg.value), self.max_message_bytes
    if size > limit:
        raise MessageTooLarge(f"the result has {size} bytes, the limit is {limit}", size=size, limit=limit)
    if not msg.name and not msg.chord:
        raise RequestError("a result needs a name or a chord")
    if msg.name:
        _check_name(msg.name, "result")
    if msg.chord:
        _check_name(msg.chord, "chord")
        _check_name(msg.member, "chord's member")
    if not INTERIM <= msg.kind <= FINAL:
        raise RequestError(f"result kind {msg.kind} is unknown")
    if not -1 <= msg.index < NO_INDEX:
        raise RequestError(f"a chord's part has an index of -1 to {NO_INDEX - 1}, not {msg.index}")
    _check_ttl(msg.ttl_ms)
    _check_ttl(msg.chord_ttl_ms)
    if msg.name and msg.check and not self.engine.results.find(msg.name)[0]:
        self.instance.background.run(self.session, msg.rid, _look_and_store(self, msg))
    else:
        _store(self, msg)


async def _look_and_store(self: Handlers, msg: m.StoreResult) -> None:
    await self.engine.results.get(msg.name)
    _store(self, msg)


def _store(self: Handlers, msg: m.StoreResult) -> None:
    results, service = self.engine.results, self.instance.results
    index = msg.index if msg.index >= 0 else NO_INDEX
    stored = results.store(
        msg.name, msg.kind, msg.value, msg.ttl_ms, msg.chord, index, msg.member, msg.chord_ttl_ms
    )  # fmt: skip
    if stored:
        service.changed(msg.name, Result(msg.kind, 0, msg.value))
    chord = self.engine.state.results.chords.get(msg.chord) if msg.chord else None
    complete = chord is not None and service.claim_callback(self.session, chord)
    self.instance.outbox.reply(self.session, m.ResultStored(msg.rid, stored, complete))


def get_results(self: Handlers, msg: m.GetResults) -> None:
    _check_names(msg.names)
    values: list[bytes | None] = []
    size = 0
    for name in msg.names:
        known, found = self.engine.results.find(name, msg.age_ms)
        if not known:
            self.instance.background.run(self.session, msg.rid, _read_and_answer(self, msg))
            return
        values.append(None if found is None else found.value)
        size += len(values[-1] or b"")
        if size >= _PAGE_BYTES:
            break
    self.instance.outbox.reply(self.session, m.Results(msg.rid, values))


async def _read_and_answer(self: Handlers, msg: m.GetResults) -> None:
    values: list[bytes | None] = []
    size = 0
    for start in range(0, len(msg.names), _READS):
        for found in await asyncio.gather(*map(self.engine.results.get, msg.names[start : start + _READS])):
            if size < _PAGE_BYTES:
                values.append(None if found is None else found.value)
                size += len(values[-1] or b"")
        if size >= _PAGE_BYTES:
            break
    self.instance.outbox.reply(self.session, m.Results(msg.rid, values))


def watch_results(self: Handlers, msg: m.WatchResults) -> None:
    _check_names(msg.names)
    service, unknown = self.instance.results, []
    service.check_room(self.session, len(msg.names))
    for name in msg.names:
        known, found = self.engine.results.find(name, msg.age_ms)
        service.watch(self.session, name)
        if found is not None:
            service.push(self.session, name, found)
        elif not known:
            unknown.append(name)
    if unknown:
        self.instance.background.run(self.session, 0, _look_for(self, unknown))
    if msg.rid:
        self.instance.outbox.reply(self.session, m.Ok(msg.rid))


async def _look_for(self: Handlers, names: list[bytes]) -> None:
    """Push what the store has of these, to who was not told of a change meanwhile."""
    service = self.instance.results
    for start in range(0, len(names), _READS):
        part = names[start : start + _READS]
        reads = await asyncio.gather(*map(self.engine.results.get, part), return_exceptions=True)
        for name, found in zip(part, reads, strict=True):
            if isinstance(found, BaseException):
                log.error("result %r can't be read: %s", name, found)
                if service.is_waiting(self.session, name):  # who asks for it is told why
                    self.instance.outbox.reply(self.session, m.ResultsChanged([(name, None, False)]))
            elif found is not None and service.is_waiting(self.session, name):
                service.push(self.session, name, found)


def unwatch_results(self: Handlers, msg: m.UnwatchResults) -> None:
    for name in msg.names:
        self.instance.results.unwatch(self.session, name)
    if msg.rid:
        self.instance.outbox.reply(self.session, m.Ok(msg.rid))


def forget_results(self: Handlers, msg: m.ForgetResults) -> None:
    _check_names(msg.names)
    self.engine.results.forget(msg.names)
    self.instance.outbox.reply(self.session, m.Ok(msg.rid))


def open_chord(self: Handlers, msg: m.OpenChord) -> None:
    _check_name(msg.chord, "chord")
    _check_ttl(msg.ttl_ms)
    for number in (msg.size, msg.added):
        if not -1 <= number <= NO_INDEX:
            raise RequestError(f"a chord of {number} tasks is out of range")
    if len(msg.header) > self.max_message_bytes:
        size, limit = len(msg.header), self.max_message_bytes
        raise MessageTooLarge(f"the chord's header has {size} bytes, the limit is {limit}", size=size, limit=limit)
    self.engine.commits.check_room(len(msg.header))
    self.engine.results.open_chord(
        msg.chord, msg.ttl_ms, msg.size, msg.added, msg.header, again=msg.again, body=msg.body
    )
    self.instance.outbox.reply(self.session, m.Ok(msg.rid))


def get_chord(self: Handlers, msg: m.GetChord) -> None:
    _check_name(msg.chord, "chord")
    self.instance.background.run(self.session, msg.rid, _read_chord(self, msg))


async def _read_chord(self: Handlers, msg: m.GetChord) -> None:
    chord = self.engine.state.results.chords.get(msg.chord)
    if chord is None:
        self.instance.outbox.reply(self.session, m.ChordParts(msg.rid, b"", [], 0))
        return
    order = sorted(chord.parts)
    parts: list[tuple[bytes, bytes]] = []
    size = 0
    for start in range(max(msg.start, 0), len(order), _READS):
        some = order[start : start + _READS]
        values = await asyncio.gather(*(self.engine.results.part(chord.parts[key]) for key in some))
        for (_index, member), value in zip(some, values, strict=True):
            if size < _PAGE_BYTES:
                parts.append((member, value))
                size += len(value)
        if size >= _PAGE_BYTES:
            break
    self.instance.outbox.reply(self.session, m.ChordParts(msg.rid, chord.header, parts, len(order)))


def close_chord(self: Handlers, msg: m.CloseChord) -> None:
    _check_name(msg.chord, "chord")
    self.engine.results.close_chord(msg.chord)
    self.instance.outbox.reply(self.session, m.Ok(msg.rid))


HANDLERS: dict[type, Callable[[Any, Any], None]] = {
    m.StoreResult: store_result, m.GetResults: get_results, m.WatchResults: watch_results,
    m.UnwatchResults: unwatch_results, m.ForgetResults: forget_results, m.OpenChord: open_chord,
    m.GetChord: get_chord, m.CloseChord: close_chord,
}  # fmt: skip
