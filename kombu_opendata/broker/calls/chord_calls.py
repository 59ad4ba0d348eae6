"""Calls about chords: open, count, read, close, and the choice of the client that sends the callback.

The client whose part completes a chord is requested to send the callback. Another client that stores a part of a
complete chord (of a task that was redelivered) is requested to send it only if the first one has disconnected. So the
callback is always sent, and sent twice only if its first sender died after it sent the callback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import MessageTooLarge, RequestError
from ...protocol import messages as m
from ...storage.commit.commits import Commits
from ...storage.operations.task_results import ResultStore
from ...storage.records.results import NO_INDEX
from ...storage.state.result_state import ChordState
from ..delivery.result_watches import MAX_NAME_BYTES, MAX_TTL_MS
from ..model.sessions import Session
from .dispatch.context import Context
from .dispatch.registry import handles

PAGE_BYTES = 4 << 20
#: maximum number of concurrent reads of the store for one call
READS = 64


@dataclass(frozen=True, slots=True)
class ChordCalls:
    """The calls of the result backend about chords."""

    _results: ResultStore
    _chords: Mapping[bytes, ChordState]
    _sessions: Mapping[bytes, Session]
    _commits: Commits
    _max_message_bytes: int

    def claim_callback(self, session: Session, name: bytes) -> bool:
        """Return whether this session must send the callback: the chord is complete, and no other session sends it."""
        chord = self._chords.get(name)
        if chord is None or not chord.is_complete:
            return False
        if chord.sender is not None and chord.sender != session.id and chord.sender in self._sessions:
            return False
        chord.sender = session.id
        return True

    @handles(m.OpenChord)
    def open_chord(self, call: Context, msg: m.OpenChord) -> None:
        check_name(msg.chord, "chord")
        check_ttl(msg.ttl_ms)
        for number in (msg.size, msg.added):
            if not -1 <= number <= NO_INDEX:
                raise RequestError(f"a chord of {number} tasks is out of range")
        if len(msg.header) > self._max_message_bytes:
            size, limit = len(msg.header), self._max_message_bytes
            raise MessageTooLarge(f"the chord's header has {size} bytes, the limit is {limit}", size=size, limit=limit)
        self._commits.check_room(len(msg.header))
        self._results.open_chord(msg.chord, msg.ttl_ms, msg.size, msg.added, msg.header, again=msg.again, body=msg.body)
        call.reply(m.Ok(msg.rid))

    @handles(m.GetChord)
    async def get_chord(self, call: Context, msg: m.GetChord) -> m.ChordParts:
        check_name(msg.chord, "chord")
        chord = self._chords.get(msg.chord)
        if chord is None:
            return m.ChordParts(msg.rid, b"", [], 0)
        order = sorted(chord.parts)
        parts: list[tuple[bytes, bytes]] = []
        size = 0
        for start in range(max(msg.start, 0), len(order), READS):
            keys = order[start : start + READS]
            values = await asyncio.gather(*(self._results.part(chord.parts[key]) for key in keys))
            for (_index, member), value in zip(keys, values, strict=True):
                if size < PAGE_BYTES:
                    parts.append((member, value))
                    size += len(value)
            if size >= PAGE_BYTES:
                break
        return m.ChordParts(msg.rid, chord.header, parts, len(order))

    @handles(m.CloseChord)
    def close_chord(self, call: Context, msg: m.CloseChord) -> None:
        check_name(msg.chord, "chord")
        self._results.close_chord(msg.chord)
        call.reply(m.Ok(msg.rid))


def check_name(name: bytes, what: str) -> None:
    if not 0 < len(name) <= MAX_NAME_BYTES:
        raise RequestError(f"the name of a {what} has 1 to {MAX_NAME_BYTES} bytes, not {len(name)}")


def check_ttl(ttl_ms: int) -> None:
    if not 0 <= ttl_ms <= MAX_TTL_MS:
        text = f"a time to live of {ttl_ms} ms is out of range: give 0 (no expiry) to {MAX_TTL_MS}"
        raise RequestError(text, value=ttl_ms)
