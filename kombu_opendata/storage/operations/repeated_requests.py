"""Repeated requests: idempotency keys of publishes, and the progress of calls that a client repeats.

**Keys.** A publish under a key is stored for a documented time (docs/client-api.md), in the commit of its messages, so
that after a crash both are there or neither. The clock of the engine decides when it expires. Expired records count as
absent; repeated sweeps delete them.

Keys that the store lacks are in memory, and some of the others are cached (``state/write_back_cache.py``, which also
bounds the known absent ones). Of two publishes with the same key both would be stored, if they awaited between their
decision and its effect. Therefore :meth:`Idempotency.find` does not read. If it does not know a key, the caller awaits
:meth:`Idempotency.load` and calls ``find`` again, until all keys of the publish are known; then it publishes and calls
:meth:`Idempotency.remember` without an await in between. If the read fails, the publish is refused. Keys of messages
that are not stored are in the cache only: a restart loses them, and many newer ones evict them.

**Deleted queues.** A new queue of the same name must not inherit the keys. The records can't be found, as their names
are hashes, so the deletion of a queue writes one record under the empty key: for publishes to this queue, keys of
messages up to the id in that record, the last one at that time, are invalid. It lasts as long as any key can. Where no
key was used there is nothing to invalidate; as ``used`` is False after a startup, :meth:`Idempotency.look` searches the
store before.

**Progress.** A call that removes, moves or copies messages stores its progress with its changes, in each commit. A
client that lost the broker repeats the call with the same number: if it was over, it only receives the count again;
otherwise the call continues, and the client receives the total count. Of a session only the last progress is stored,
until the session ends or was not used for long: of two simultaneous calls of a session, one begins its count again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ...protocol.unique_key import HEADER
from ..clock import TimeSlice
from ..effects.publishes import NoteRemovalEffect, SentUniqueEffect, SentWithKeyEffect
from ..engine_parts import EngineParts, EngineService
from ..records import idempotency, keys
from ..records.idempotency import DIGEST_BYTES, Sending, Until, unique_name_of
from ..records.metadata import Metadata
from ..records.session_records import Removal

#: records that a sweep reads together, and at least
_SWEEP_ROWS = 2000
_NAME = slice(2, None)
#: keys that are read together
_LOADED_AT_ONCE = 64
#: the longest time for which a key may be stored: thirty days
MAX_KEY_TTL_MS = 30 * 86_400_000


class Idempotency(EngineService):
    """The operations on the keys of one instance."""

    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        self._keys = parts.state.idempotency
        self._swept_to = b""

    def find(self, name: bytes, queue: str = "") -> tuple[bool, Sending | None]:
        """Return True if the key is in memory or known to be absent, and its publish, if any.

        If the first is False, the key is unknown: call :meth:`load`.

        ``queue``: the queue to which the messages were published by its name, if any.
        """
        is_known, sending = self._keys.find(name)
        if sending is None or not queue:
            return is_known, self._living(sending)
        is_known, deletion = self._keys.find(_drop_name(queue))
        deletion = self._living(deletion)
        return is_known, None if deletion is not None and max(sending.ids) <= deletion.ids[0] else self._living(sending)

    def _living(self, sending: Sending | None) -> Sending | None:
        return None if sending is None or sending.expires_at_ms <= self._clock.now_ms() else sending

    @contextmanager
    def held(self, names: Iterable[bytes], queue: str = "") -> Iterator[None]:
        """Let the cache keep these keys, whatever their number and size."""
        held = {*names, _drop_name(queue)}
        self._keys.hold(held)
        try:
            yield
        finally:
            self._keys.release(held)

    async def load(self, names: Iterable[bytes], queue: str = "") -> None:
        """Read these keys for :meth:`find`; without :meth:`held`, the cache may evict some of them.

        Raises:
            StoreError: the store can't be read.
        """
        if self._keys.stored is None:
            await self.look()
        all_names = [_drop_name(queue), *names] if queue else list(names)
        for start in range(0, len(all_names), _LOADED_AT_ONCE):
            batch = [name for name in all_names[start : start + _LOADED_AT_ONCE] if not self._keys.find(name)[0]]
            stored_at = [keys.idempotency_key(name) for name in batch]
            for name, key, value in zip(batch, stored_at, await self._store.get_many(stored_at), strict=True):
                if not self._keys.find(name)[0]:  # no publish used it during the read
                    self._keys.keep(name, None if value is None else idempotency.decode(key, value))

    def remember(self, name: bytes, sending: Sending) -> None:
        """Store a key, in the commit of its messages."""
        self._commits.apply(SentUniqueEffect(name, *sending) if sending.hold else SentWithKeyEffect(name, *sending[:4]))

    def relocate(self, name: bytes, id: int, queue: str, bucket: int, target: int) -> None:
        """Store the new bucket of a message that may hold a unique key, which is in memory."""
        _is_known, sending = self._keys.find(name)
        if sending is not None and sending.hold is not None and sending.ids[0] == id:
            places = zip(sending.queues[0], sending.hold.buckets, strict=True)
            buckets = tuple(target if place == (queue, bucket) else place[1] for place in places)
            self.remember(name, sending._replace(hold=sending.hold._replace(buckets=buckets)))

    def release(self, name: bytes, id: int, left: Collection[str]) -> None:
        """End the hold of a message on a unique key, which is in memory, by its places in these queues.

        A message that an operator moves, or redrives, holds no key, whatever the bucket that it comes into.
        """
        _is_known, sending = self._keys.find(name)
        if sending is None or sending.hold is None or sending.hold.until == Until.TIME or sending.ids[0] != id:
            return
        places = [place for place in zip(sending.queues[0], sending.hold.buckets, strict=True) if place[0] not in left]
        queues, buckets = tuple(place[0] for place in places), tuple(place[1] for place in places)
        expires_at_ms = sending.expires_at_ms if places else 0
        hold = sending.hold._replace(buckets=buckets)
        self.remember(name, sending._replace(expires_at_ms=expires_at_ms, queues=(queues,), hold=hold))

    def remember_in_memory(self, name: bytes, sending: Sending) -> None:
        """Store the key of messages that are not stored: only in memory, and only the newest keys."""
        self._keys.discard(name)
        self._keys.keep(name, sending)

    async def look(self) -> None:
        """Check if there are any keys."""
        if not self._keys.used:
            first, last = keys.kind_range(keys.RecordKind.IDEMPOTENCY)
            if await self._store.scan(first, last, limit=1):
                self._keys.used = True
            elif self._keys.stored is None:
                self._keys.end_sweep()  # of an empty store

    def drop_queue(self, queue: str) -> None:
        """Make the keys of earlier publishes to this queue invalid, in the commit that deletes it."""
        if not self._keys.used:
            return
        last_id, expires_at = self._state.next_id - 1, self._clock.now_ms() + MAX_KEY_TTL_MS
        self.remember(_drop_name(queue), Sending((last_id,), expires_at, bytes(DIGEST_BYTES), ((queue,),)))

    async def sweep(self, now: int) -> int:
        """Read the records after those of the last call, and delete the unneeded ones; return their number.

        It reads more records if there are more new keys, so the unneeded ones remain a fraction of all. The first call
        after a startup reads all records, for the names of stored keys.
        """
        pace, deleted_count = TimeSlice(), 0
        rows_left = _SWEEP_ROWS + 2 * max(self._keys.added, 0)
        self._keys.added = 0
        while rows_left > 0 or self._keys.stored is None:
            deleted_count += await self._sweep_rows(now)
            rows_left -= _SWEEP_ROWS
            if not self._swept_to:
                break
            await pace.pause()
        return deleted_count

    async def _sweep_rows(self, now: int) -> int:
        """Sweep some records. A key that was used again since is in memory with its new time, which counts."""
        start = keys.idempotency_key(self._swept_to) + b"\0" if self._swept_to else None
        first, last = keys.kind_range(keys.RecordKind.IDEMPOTENCY)
        if start is None:
            self._keys.begin_sweep()
        rows = await self._store.scan(start or first, last, limit=_SWEEP_ROWS)
        self._swept_to = rows[-1][0][_NAME] if len(rows) == _SWEEP_ROWS else b""
        running, deleted_count = self._state.running.ids(), 0
        for key, value in rows:
            name = key[_NAME]
            is_known, sending = self._keys.find(name)
            if not is_known:
                sending = idempotency.decode(key, value)
            if sending is not None and (sending.expires_at_ms <= now or self._is_over(sending, running)):
                self._keys.put(name, None)
                deleted_count += 1
            else:
                self._keys.found(name)
        if not self._swept_to:
            self._keys.end_sweep()
        return deleted_count

    def _is_over(self, sending: Sending, running: Collection[int]) -> bool:
        """Return True if a unique key's message has ended, so that it can never hold the key again."""
        hold, id = sending.hold, sending.ids[0]
        if hold is None or hold.until == Until.TIME or id in running:
            return False
        for name, bucket in zip(sending.queues[0], hold.buckets, strict=True):
            queue = self._state.queues.get(name)
            if queue is not None and (bucket in queue.messages.cold or queue.messages.find(id) is not None):
                return False
        return True


def unique_names(messages: Iterable[Metadata]) -> dict[int, bytes]:
    """Return the hashes of the unique keys that these messages took, or requested, by message id."""
    headers_by_id = ((message.message_id, message.headers) for message in messages)
    return {
        id: unique_name_of(headers[HEADER], headers.get("exchange", ""), headers.get("routing_key", ""))
        for id, headers in headers_by_id
        if HEADER in headers
    }


def _drop_name(queue: str) -> bytes:
    """Return the name of a deleted queue's record. No publish has an empty key."""
    return idempotency.name_of("", queue, "")


#: the record of a call that has not removed any message yet
NO_REMOVAL = Removal(0, 0, 0, False)


class Call(NamedTuple):
    """A client's call, which it repeats with the same number if it loses the broker."""

    session: bytes
    number: int


class RepeatedCalls(EngineService):
    """The last call of each session of one instance that removes messages from a queue, moves or copies them."""

    def before(self, call: Call | None) -> Removal:
        """Return the progress of this call before its client repeated it."""
        last = self._state.removals.get(call.session) if call is not None else None
        return last if last is not None and call is not None and last.call == call.number else NO_REMOVAL

    def note(self, call: Call | None, messages: int, *, is_over: bool = False) -> None:
        """Store, in the commit of the change, the number of messages that a call has removed, moved or copied."""
        if call is not None:
            self._commits.apply(NoteRemovalEffect(call.session, call.number, messages, self._clock.now_ms(), is_over))
