"""Payloads: their records, and a bounded cache, so that a delivery normally needs no read."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from ...errors import CorruptRecord, DamagedBatch
from ..clock import LOOKS, TimeSlice
from ..records import keys
from ..records.payload import NewMessage
from ..records.payload_places import EnvelopePlace, Place
from ..records.staged_jobs import StagedObject
from ..slatedb.store_reads import Reads
from ..slatedb.store_writer import SlateStore
from .payload_reader import PayloadReader, locate, require, size_of

#: widest gap between the ids of one scan
_MAX_GAP = 64
#: fewest ids for which a scan is used
_MIN_RUN = 8
#: most rows of one call of a scan
_SCAN_ROWS = 512
#: approximate bytes of payloads that one call reads
_CALL_BYTES = 256 << 10
_READ_AHEAD_BYTES = 256 << 10
#: limit for the payloads of one load: a larger one would hold up the deliveries that follow it
_LOAD_BYTES = 8 << 20


def dense_runs(ids: list[int], gap: int = _MAX_GAP) -> Iterator[list[int]]:
    """Yield runs of the sorted ids that are worth a scan, with gaps up to ``gap``.

    The other ids are read individually.
    """
    start = 0
    for position in range(1, len(ids) + 1):
        if position == len(ids) or ids[position] - ids[position - 1] > gap:
            if position - start >= _MIN_RUN:
                yield ids[start:position]
            start = position


async def read_sizes(store: Reads, ids: list[int]) -> list[int]:
    """Return the sizes of stored payloads in bytes; 0 for a missing one, which its delivery will report."""
    records: dict[bytes, bytes] = {}
    for run in dense_runs(sorted(ids)):
        first, last = keys.payload_key(run[0]), keys.payload_key(run[-1]) + b"\0"
        records.update(await store.scan(first, last, read_ahead_bytes=_READ_AHEAD_BYTES))
    sizes = []
    for id in ids:
        key = keys.payload_key(id)
        value = records.get(key) or await store.get(key)
        sizes.append(0 if value is None else size_of(locate(id, value)))
    return sizes


class Payloads:
    """The payloads in memory, and reads of others.

    ``batch_of`` returns the batch object with the payload of a message, if there is one. ``pending`` are in the journal
    but not in the store, ``flushing`` are in the current checkpoint; both remain until the store has them. The other
    payloads are in a cache of at most ``cache_bytes``, evicted in the order of insertion.
    """

    def __init__(
        self,
        store: SlateStore,
        reader: PayloadReader,
        cache_bytes: int,
        batch_of: Callable[[int], StagedObject | None] = lambda _id: None,
    ) -> None:
        self._store, self._reader, self._batch_of = store, reader, batch_of
        self._cache_bytes, self._load_bytes = cache_bytes, min(cache_bytes // 2, _LOAD_BYTES)
        self._size = 0
        self._mean_bytes = _CALL_BYTES // _SCAN_ROWS  # average of the records of the last read
        # removing the oldest item of a plain dict slows down with each removal
        self._hot: OrderedDict[int, bytes] = OrderedDict()
        self.pending_staged: dict[int, NewMessage] = {}  # as `pending`, with ids that are not the newest
        self.flushing_staged: dict[int, NewMessage] = {}
        self.pending: dict[int, bytes] = {}
        self.flushing: dict[int, bytes] = {}
        self.pending_metadata: dict[int, bytes] = {}  # metadata records by message id
        self.flushing_metadata: dict[int, bytes] = {}

    def find(self, id: int) -> bytes | None:
        """Return the payload of a message, if it is in memory."""
        for cache in (self.pending, self._hot, self.flushing):
            envelope = cache.get(id)
            if envelope is not None:  # it may be empty
                return envelope
        return None

    def unstored_metadata(self, id: int) -> bytes | None:
        """Return the metadata record of a message, if the store does not have it yet."""
        staged = self.pending_staged.get(id) or self.flushing_staged.get(id)
        return staged.metadata if staged else self.pending_metadata.get(id) or self.flushing_metadata.get(id)

    def drop(self, id: int) -> None:
        """Remove a payload from the cache: its message was delivered or settled."""
        envelope = self._hot.pop(id, None)
        if envelope is not None:
            self._size -= len(envelope)

    def begin_flush(self) -> None:
        """Begin a checkpoint, with all pending payloads in its batch."""
        self.flushing, self.pending = self.pending, {}
        self.flushing_staged, self.pending_staged = self.pending_staged, {}
        self.flushing_metadata, self.pending_metadata = self.pending_metadata, {}

    def end_flush(self, ids: Iterable[int]) -> None:
        """End a checkpoint that the store has; of the payloads that it wrote, cache those of ``ids``."""
        flushed = self.flushing
        self.flushing = {}
        self.flushing_staged = {}
        self.flushing_metadata = {}
        for id in ids:
            if id in flushed:
                self.keep(id, flushed[id])

    def keep(self, id: int, envelope: bytes) -> None:
        """Cache a payload that can be read again."""
        hot = self._hot
        if id not in hot:
            self._size += len(envelope)
            hot[id] = envelope
        while self._size > self._cache_bytes and len(hot) > 1:
            self._size -= len(hot.popitem(last=False)[1])

    def keep_value(self, place: EnvelopePlace, value: bytes) -> None:
        """Cache the value of a result that was written to a segment, for a client that waits for it."""
        self._reader.frames.put(place.path, place.offset, value)

    def find_value(self, place: EnvelopePlace) -> bytes | None:
        """Return the value of a result, if it is in memory."""
        return self._reader.frames.get(place.path, place.offset)

    async def read_value(self, place: EnvelopePlace) -> bytes:
        """Return the value of a result in a segment, as :meth:`.PayloadReader.read_value`."""
        return await self._reader.read_value(place)

    def shrink(self) -> None:
        self._hot.clear()
        self._reader.clear()
        self._size = 0

    async def read(self, id: int) -> bytes | None:
        """Return a payload from memory or the store, without caching it; None if there is none.

        Raises:
            CorruptRecord: it is damaged; a DamagedBatch names its object.
            StoreError: it can't be read now.
        """
        envelope = self.find(id)
        if envelope is not None:
            return envelope
        record = self._unstored_uri(id) or await self._store.get(keys.payload_key(id)) or self._unstored_uri(id)
        if record is None:
            return self.find(id)
        try:
            return require((await self._reader.read({id: locate(id, record)}))[id])
        except DamagedBatch:
            if await self._store.get(keys.payload_key(id)) is None and self._unstored_uri(id) is None:
                return None  # the message was deleted during the read, and then its file
            raise

    async def load(self, ids: list[int]) -> dict[int, CorruptRecord]:
        """Load payloads into the cache, in the order of delivery, up to 8 MB or half of its size.

        Returns:
            The errors of missing and damaged payloads, by message id.

        Raises:
            StoreError: payloads can't be read now.
        """
        pending = self.pending
        hot = self._hot
        flushing = self.flushing
        ids = [id for id in ids if id not in hot and id not in pending and id not in flushing]
        batches = self._batches(ids)
        in_batches = await self._reader.places_in(batches.items()) if batches else {}
        records = await self._scan(sorted(id for id in ids if id not in in_batches))
        room = self._load_bytes
        errors: dict[int, CorruptRecord] = {}
        places: dict[int, Place] = {}
        piece = TimeSlice()
        for number, id in enumerate(ids):
            if number % LOOKS == 0:
                await piece.pause()
            place: Place | None = in_batches.get(id)
            if place is None:
                record = records.get(id) or self._unstored_uri(id) or await self._store.get(keys.payload_key(id))
                try:
                    place = locate(id, record)
                except CorruptRecord as exc:
                    errors[id] = exc
                    continue
            room -= len(place) if type(place) is bytes else size_of(place)
            if room < 0 and places:
                break  # it would evict the first payload, for which a delivery waits
            places[id] = place
        envelopes = await self._reader.read(places)
        for id in places:
            envelope = envelopes[id]
            if isinstance(envelope, bytes):
                self.keep(id, envelope)
            else:
                errors[id] = envelope
        return errors

    def _batches(self, ids: list[int]) -> dict[StagedObject, list[int]]:
        """Return those of the messages that are in batch objects, by the object."""
        batches: dict[StagedObject, list[int]] = {}
        batch: StagedObject | None = None
        for id in ids:
            if batch is None or not 0 <= id - batch.first_id < batch.rows:  # else it is in that of the one before
                batch = self._batch_of(id)
            if batch is not None:
                batches.setdefault(batch, []).append(id)
        return batches

    def _unstored_uri(self, id: int) -> bytes | None:
        """Return the payload record of a staged message, if the store does not have it yet."""
        staged = self.pending_staged.get(id) or self.flushing_staged.get(id)
        return staged.uri if staged else None

    async def _scan(self, ids: list[int]) -> dict[int, bytes]:
        """Return the records of ids that are close together, up to the bytes of one load; ``ids`` are sorted."""
        records: dict[int, bytes] = {}
        room = self._load_bytes
        for run in dense_runs(ids):
            first, last = keys.payload_key(run[0]), keys.payload_key(run[-1]) + b"\0"
            batches = self._store.scan_batches(
                first,
                last,
                batch=max(1, min(_SCAN_ROWS, _CALL_BYTES // self._mean_bytes)),
                read_ahead_bytes=_READ_AHEAD_BYTES,
                in_thread=True,
            )
            async for rows in batches:
                records.update([(int.from_bytes(key[-8:], "big"), value) for key, value in rows])
                size = sum(len(value) for _key, value in rows)
                self._mean_bytes = size // len(rows) + 1
                room -= size
                if room < 0:
                    return records
        return records
