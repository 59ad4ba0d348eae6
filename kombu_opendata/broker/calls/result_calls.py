"""Calls that store, read, watch and forget task results, and open, read and close chords.

Results in memory are returned immediately. The others are read from the store in the background.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from ...errors import MessageTooLarge, RequestError
from ...protocol import messages as m
from ...storage.commit.commits import Commits
from ...storage.operations.task_results import ResultStore
from ...storage.records.results import FINAL, INTERIM, NO_INDEX, Result
from ...storage.state.result_state import ChordState
from ..delivery.result_watches import MAX_NAME_BYTES, MAX_TTL_MS, ResultWatches
from ..model.sessions import Session
from .dispatch import BrokerCalls, Context, check_range, handles

log = logging.getLogger(__name__)

MAX_NAMES = 100_000
PAGE_BYTES = 4 << 20
#: maximum number of concurrent reads of the store for one call
_READS = 64
#: interval between two looks for the client that must send a callback
_SENDER_SECONDS = 0.1


class ResultCalls(BrokerCalls):
    """Calls of the result backend.

    The client whose part completes a chord must send the chord's callback. If this client ends before it has sent the
    callback, its task is delivered again, and the client that then stores the part again must send the callback. The
    callback is therefore always sent, and sent twice only if the first client ended after sending it.

    A task may be delivered again before the session of the first client's results is over, because only the message's
    session has ended. So while the first client has no connection, the reply to the second one waits: the first one
    comes back, or its session ends. Without this, the second client would acknowledge the task, and no client would
    send the callback.
    """

    _results: ResultStore
    _chords: Mapping[bytes, ChordState]
    _watches: ResultWatches
    _sessions: Mapping[bytes, Session]
    _commits: Commits
    _max_message_bytes: int

    @handles(m.StoreResult)
    def store_result(self, call: Context, msg: m.StoreResult) -> None:
        size, limit = len(msg.value), self._max_message_bytes
        if size > limit:
            raise MessageTooLarge(f"the result has {size} bytes, the limit is {limit}", size=size, limit=limit)
        if not msg.name and not msg.chord:
            raise RequestError("a result needs a name or a chord")
        if msg.name:
            check_range("the length of a result's name", len(msg.name), 1, MAX_NAME_BYTES)
        if msg.chord:
            check_range("the length of a chord's name", len(msg.chord), 1, MAX_NAME_BYTES)
            check_range("the length of a chord member's name", len(msg.member), 1, MAX_NAME_BYTES)
        check_range("the kind of a result", msg.kind, INTERIM, FINAL)
        check_range("the index of a chord's part", msg.index, -1, NO_INDEX - 1)
        check_range("a time to live in ms", msg.ttl_ms, 0, MAX_TTL_MS)
        check_range("a time to live in ms", msg.chord_ttl_ms, 0, MAX_TTL_MS)
        if len(msg.value) >= self._commits.own_bytes or self._needs_look(msg):
            call.run(msg.rid, self._load_and_store(call, msg))
        else:
            is_stored = self._store(msg)
            if self._is_sender_absent(call.session, msg.chord):
                call.run(msg.rid, self._await_sender(call, msg, is_stored))
            else:
                call.reply(self._stored(call, msg, is_stored))

    def _needs_look(self, msg: m.StoreResult) -> bool:
        """Return True if only the store knows whether there is a final result."""
        return bool(msg.name) and msg.check and not self._results.find(msg.name)[0]

    async def _load_and_store(self, call: Context, msg: m.StoreResult) -> m.ResultStored:
        async with self._commits.written((msg.value,)):
            if self._needs_look(msg):
                await self._results.get(msg.name)
            is_stored = self._store(msg)
        return await self._await_sender(call, msg, is_stored)

    async def _await_sender(self, call: Context, msg: m.StoreResult, is_stored: bool) -> m.ResultStored:
        while self._is_sender_absent(call.session, msg.chord):  # noqa: ASYNC110 - its return and its end are no events
            await asyncio.sleep(_SENDER_SECONDS)
        return self._stored(call, msg, is_stored)

    def _stored(self, call: Context, msg: m.StoreResult, is_stored: bool) -> m.ResultStored:
        return m.ResultStored(msg.rid, is_stored, bool(msg.chord) and self._claim_callback(call.session, msg.chord))

    def _store(self, msg: m.StoreResult) -> bool:
        index = msg.index if msg.index >= 0 else NO_INDEX
        stored = self._results.store(
            msg.name,
            msg.kind,
            msg.value,
            msg.ttl_ms,
            group=msg.chord,
            index=index,
            member=msg.member,
            chord_ttl_ms=msg.chord_ttl_ms,
        )
        if stored:
            self._watches.changed(msg.name, Result(msg.kind, 0, msg.value))
        return stored

    @handles(m.GetResults)
    def get_results(self, call: Context, msg: m.GetResults) -> None:
        _check_names(msg.names)
        values: list[bytes | None] = []
        size = 0
        for name in msg.names:
            is_known, result = self._results.find(name, msg.age_ms)
            if not is_known or (result is not None and result.place is not None):
                call.run(msg.rid, self._read(msg))
                return
            values.append(None if result is None else result.value)
            size += len(values[-1] or b"")
            if size >= PAGE_BYTES:
                break
        call.reply(m.Results(msg.rid, values))

    async def _read(self, msg: m.GetResults) -> m.Results:
        values: list[bytes | None] = []
        size = 0
        for start in range(0, len(msg.names), _READS):
            names = msg.names[start : start + _READS]
            for name, result in zip(names, await asyncio.gather(*map(self._results.get, names)), strict=True):
                if size < PAGE_BYTES:
                    values.append(None if result is None else await self._results.value(name, result))
                    size += len(values[-1] or b"")
            if size >= PAGE_BYTES:
                break
        return m.Results(msg.rid, values)

    @handles(m.WatchResults)
    def watch_results(self, call: Context, msg: m.WatchResults) -> None:
        _check_names(msg.names)
        watches, unknown = self._watches, []
        watches.check_room(call.session, len(msg.names))
        for name in msg.names:
            is_known, result = self._results.find(name, msg.age_ms)
            watches.watch(call.session, name)
            if result is not None:
                watches.push(call.session, name, result)
            elif not is_known:
                unknown.append(name)
        if unknown:
            call.run(0, self._push_stored(call, unknown))
        if msg.rid:
            call.reply(m.Ok(msg.rid))

    async def _push_stored(self, call: Context, names: list[bytes]) -> None:
        """Push the results that the store has, except those that changed and were pushed during the reads."""
        watches = self._watches
        for start in range(0, len(names), _READS):
            part = names[start : start + _READS]
            reads = await asyncio.gather(*map(self._results.get, part), return_exceptions=True)
            for name, result in zip(part, reads, strict=True):
                if isinstance(result, BaseException):
                    log.error("result %r can't be read: %s", name, result)
                    if watches.is_waiting(call.session, name):  # the client requests it, and receives the error
                        call.reply(m.ResultsChanged([(name, None, False)]))
                elif result is not None and watches.is_waiting(call.session, name):
                    watches.push(call.session, name, result)

    @handles(m.UnwatchResults)
    def unwatch_results(self, call: Context, msg: m.UnwatchResults) -> None:
        for name in msg.names:
            self._watches.unwatch(call.session, name)
        if msg.rid:
            call.reply(m.Ok(msg.rid))

    @handles(m.ForgetResults)
    def forget_results(self, call: Context, msg: m.ForgetResults) -> None:
        _check_names(msg.names)
        self._results.forget(msg.names)
        call.reply(m.Ok(msg.rid))

    def _claim_callback(self, session: Session, name: bytes) -> bool:
        """Return True if this session must send the callback: the chord is complete, and no other session sends it."""
        chord = self._chords.get(name)
        if chord is None or not chord.is_complete or self._sender(session, chord) is not None:
            return False
        chord.sender = session.id
        return True

    def _is_sender_absent(self, session: Session, name: bytes) -> bool:
        """Return True if another session must send the callback, which has no connection now."""
        chord = self._chords.get(name)
        sender = self._sender(session, chord) if chord is not None else None
        return sender is not None and sender.connection is None

    def _sender(self, session: Session, chord: ChordState) -> Session | None:
        """Return the other session that must send the callback; None if there is none."""
        return self._sessions.get(chord.sender) if chord.sender not in (None, session.id) else None

    @handles(m.OpenChord)
    def open_chord(self, call: Context, msg: m.OpenChord) -> None:
        check_range("the length of a chord's name", len(msg.chord), 1, MAX_NAME_BYTES)
        check_range("the length of a chord member's name", len(msg.member), 0, MAX_NAME_BYTES)
        check_range("a time to live in ms", msg.ttl_ms, 0, MAX_TTL_MS)
        for number in (msg.size, msg.added):
            check_range("the number of a chord's tasks", number, -1, NO_INDEX)
        if len(msg.header) > self._max_message_bytes:
            size, limit = len(msg.header), self._max_message_bytes
            raise MessageTooLarge(f"the chord's header has {size} bytes, the limit is {limit}", size=size, limit=limit)
        self._commits.check_room(len(msg.header))
        self._results.open_chord(
            msg.chord, msg.ttl_ms, msg.size, msg.added, msg.header, again=msg.again, body=msg.body, member=msg.member
        )
        call.reply(m.Ok(msg.rid))

    @handles(m.GetChord)
    async def get_chord(self, call: Context, msg: m.GetChord) -> m.ChordParts:
        check_range("the length of a chord's name", len(msg.chord), 1, MAX_NAME_BYTES)
        chord = self._chords.get(msg.chord)
        if chord is None:
            return m.ChordParts(msg.rid, b"", [], 0)
        order = sorted(chord.parts)
        parts: list[tuple[bytes, bytes]] = []
        size = 0
        for start in range(max(msg.start, 0), len(order), _READS):
            keys = order[start : start + _READS]
            values = await asyncio.gather(*(self._results.part(chord.parts[key]) for key in keys))
            for key, value in zip(keys, values, strict=True):
                if size < PAGE_BYTES:
                    parts.append((key[1], await self._results.part_value(chord.parts[key], value)))
                    size += len(parts[-1][1])
            if size >= PAGE_BYTES:
                break
        return m.ChordParts(msg.rid, chord.header, parts, len(order))

    @handles(m.CloseChord)
    def close_chord(self, call: Context, msg: m.CloseChord) -> None:
        check_range("the length of a chord's name", len(msg.chord), 1, MAX_NAME_BYTES)
        self._results.close_chord(msg.chord)
        call.reply(m.Ok(msg.rid))


def _check_names(names: list[bytes]) -> None:
    check_range("the number of names", len(names), 0, MAX_NAMES)
    for name in names:
        check_range("the length of a result's name", len(name), 1, MAX_NAME_BYTES)
