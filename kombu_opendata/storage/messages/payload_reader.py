"""The reader of stored payloads: inline, in chunks, in batch objects and in segments, also for values of results."""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate, groupby
from threading import Lock
from typing import NamedTuple, Protocol, TypeVar
from zlib import crc32

from ...errors import CorruptRecord, DamagedBatch, NewerFormat
from ...staging.batch_block import decode_places
from ...staging.batch_format import (
    FRAME_BYTES,
    MAX_ENVELOPE_BYTES,
    PLAIN_VERSION,
    SEGMENT_ROWS,
    SegmentEntry,
    Tail,
    corrupt,
)
from ...staging.batch_reader import read_index, read_tail
from ...staging.compression import FrameError, decompress
from ...staging.folder import Folder
from ...staging.folder_url import StagedFolder
from ..records import keys, payload
from ..records.payload import Chunks
from ..records.payload_places import EnvelopePlace, Place, parse_payload_uri
from ..records.staged_jobs import StagedObject

K = TypeVar("K")
V = TypeVar("V")

#: chunks of a large payload that are read at the same time
_CHUNKS_AT_ONCE = 16
#: the widest gap between payloads that one read of a batch includes
_MAX_GAP_BYTES = 16 << 10
#: the most bytes of one such read
_MAX_RUN_BYTES = 4 << 20

#: the average size of payloads from which each has its own range in a read, so that it need not be copied
_SEPARATE_BYTES = 16 << 10

#: the most bytes of decompressed frames that remain in memory: a few times the messages that are loaded ahead
_CACHE_BYTES = 4 << 20

#: the largest contents of a segment's index from which places are read
_MAX_INDEX_BYTES = 4 << 20
#: the most segments of a batch from whose index places are read
_MAX_SEGMENTS = 4096
#: segments whose places remain in memory, and directories: of some jobs that are consumed at the same time
_RECENT = 8

#: instead of a message id: the value of a result
NO_MESSAGE = -1
#: the payloads that were read, and the errors of the others, by message id
Envelopes = dict[int, bytes | CorruptRecord]


class ChunkRecords(Protocol):
    """A store of chunk records."""

    async def get_many(self, keys: Sequence[bytes], /) -> list[bytes | None]: ...


def locate(id: int, record: bytes | None) -> Place:
    """Return the place of a payload from its record, which is None if the store has none.

    Raises:
        CorruptRecord: the record is missing, does not decode, or has an unknown URI.
    """
    if record is None:
        raise CorruptRecord(f"the payload of message {id} is missing", key=keys.payload_key(id), offset=0)
    decoded = payload.decode_intact(record) or payload.decode(keys.payload_key(id), record)
    if isinstance(decoded, bytes):
        return decoded
    place = parse_payload_uri(decoded.uri) or payload.parse_chunks_uri(decoded.uri)
    if place is None:
        text = f"the payload of message {id} is at {decoded.uri}, an unknown URI"
        raise CorruptRecord(text, key=keys.payload_key(id), offset=0)
    return place


def size_of(place: Place) -> int:
    if isinstance(place, bytes):
        return len(place)
    return place.length if isinstance(place, EnvelopePlace) else place.size


def require(envelope: bytes | CorruptRecord) -> bytes:
    """Return a payload that was read, or raise its error."""
    if isinstance(envelope, CorruptRecord):
        raise envelope
    return envelope


class FrameCache:
    """Contents of the frames of batches that were read last, up to ``limit`` bytes. Threads share it."""

    def __init__(self, limit: int) -> None:
        self._limit, self._size = limit, 0
        self._contents: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._lock = Lock()

    def get(self, path: str, offset: int) -> bytes | None:
        return self._contents.get((path, offset))

    def put(self, path: str, offset: int, contents: bytes) -> None:
        key = path, offset
        with self._lock:
            if len(contents) > self._limit or key in self._contents:
                return
            self._contents[key] = contents
            self._size += len(contents)
            while self._size > self._limit:
                self._size -= len(self._contents.popitem(last=False)[1])

    def clear(self) -> None:
        with self._lock:
            self._contents.clear()
            self._size = 0


class SegmentPlaces:
    """The places of the messages of one segment of a batch, by their offsets in the segment, in compact columns."""

    __slots__ = ("_checksums", "_ends", "_frames", "_lengths", "_path", "_starts")

    def __init__(self, path: str, segment: SegmentEntry, blocks: Iterable[bytes]) -> None:
        """Decode the places in the encoded blocks of the segment's index.

        Raises:
            DamagedBatch: a block has an impossible field.
        """
        self._path = path
        self._frames: list[tuple[int, int]] = []  # offset and bytes of each
        self._ends: list[int] = []  # the offset after the last message of each frame
        self._lengths, self._checksums, self._starts = array("I"), array("I"), array("I")
        for encoded in blocks:
            block = decode_places(encoded, path, segment.payload_bytes, MAX_ENVELOPE_BYTES)
            self._frames.append((segment.payload_offset + block.offset, block.frame_bytes))
            self._lengths.extend(block.lengths)
            self._checksums.extend(block.checksums)
            self._starts.extend(accumulate(block.lengths[:-1], initial=0))
            self._ends.append(len(self._lengths))

    def __len__(self) -> int:
        return len(self._lengths)

    def places(self, offsets: Iterable[int]) -> Iterator[EnvelopePlace]:
        """Yield the place of each message; this is the place in its payload record."""
        path, ends, lengths, checksums, starts = self._path, self._ends, self._lengths, self._checksums, self._starts
        first = end = at = size = 0
        for offset in offsets:
            if not first <= offset < end:
                frame = bisect_right(ends, offset)
                first, end, (at, size) = ends[frame - 1] if frame else 0, ends[frame], self._frames[frame]
            yield EnvelopePlace(path, at, lengths[offset], checksums[offset], size, starts[offset])


class BatchIndexes:
    """The places of messages in batches, from the batches' indexes, of which the last ones remain in memory.

    They equal the places in the payload records, but a row of an index is read in a fraction of the time of a record.
    Calls block; threads share it.
    """

    def __init__(self) -> None:
        self._directories: OrderedDict[str, Tail] = OrderedDict()
        self._segments: OrderedDict[tuple[str, int], SegmentPlaces] = OrderedDict()
        self._lock = Lock()

    def places(self, folder: Folder, batch: StagedObject, ids: Iterable[int]) -> dict[int, EnvelopePlace]:
        """Return the places of messages of a batch, without those that only the payload records have.

        Raises:
            StoreError: the folder of batches can't be read now.
        """
        places: dict[int, EnvelopePlace] = {}
        with suppress(CorruptRecord, NewerFormat):
            for group, segment_places in self._segments_with(folder, batch, sorted(ids)):
                places.update(zip(group, segment_places, strict=True))
        return places

    def _segments_with(
        self, folder: Folder, batch: StagedObject, ids: list[int]
    ) -> Iterator[tuple[list[int], Iterator[EnvelopePlace]]]:
        """Yield the messages of each segment, of these ordered ones of a batch, and their places."""
        path, first_id, position = batch.path, batch.first_id, 0
        directory = self._recent(self._directories, path, lambda: _read_directory(folder, batch))
        for segment in directory.segments if directory.version != PLAIN_VERSION else ():
            stop = bisect_left(ids, first_id + segment.rows, position)
            group, position = ids[position:stop], stop
            if group and segment.rows <= SEGMENT_ROWS:
                read = partial(_read_segment, folder, path, segment, directory.version)
                read_places = self._recent(self._segments, (path, segment.payload_offset), read)
                yield group, read_places.places([id - first_id for id in group])
            first_id += segment.rows

    def _recent(self, cache: OrderedDict[K, V], key: K, read: Callable[[], V]) -> V:
        """Return a value from a cache, or read it."""
        value = cache.get(key)
        if value is None:
            value = read()
        with self._lock:
            cache[key] = value
            cache.move_to_end(key)
            if len(cache) > _RECENT:
                cache.popitem(last=False)
        return value

    def clear(self) -> None:
        with self._lock:
            self._directories.clear()
            self._segments.clear()


def _read_directory(folder: Folder, batch: StagedObject) -> Tail:
    tail = read_tail(folder, batch.path, batch.bytes)
    if (tail.rows, tail.checksum) != (batch.rows, batch.checksum):
        raise corrupt(batch.path, batch.bytes, "it is not the batch that was committed")
    return tail if len(tail.segments) <= _MAX_SEGMENTS else tail._replace(segments=[])


def _read_segment(folder: Folder, path: str, segment: SegmentEntry, version: int) -> SegmentPlaces:
    places = SegmentPlaces(path, segment, read_index(folder, path, segment, version, _MAX_INDEX_BYTES))
    if len(places) != segment.rows:
        raise corrupt(path, segment.index_offset, f"its blocks have {len(places)} of {segment.rows} rows")
    return places


class PayloadReader:
    """The reader of payloads in a store. A damaged payload is an error of its message only.

    Messages of a batch share frames, and are mostly read in its order: a frame is read and decompressed once for all of
    its messages, in a thread, and remains in memory for the next call.

    Args:
        cache_bytes: the limit for decompressed frames that remain in memory.
    """

    def __init__(self, store: ChunkRecords, folder: StagedFolder, cache_bytes: int = _CACHE_BYTES) -> None:
        self._store, self._folder = store, folder
        self.frames = FrameCache(cache_bytes)
        self._indexes = BatchIndexes()

    def clear(self) -> None:
        """Release the caches."""
        self.frames.clear()
        self._indexes.clear()

    async def places_in(self, batches: Iterable[tuple[StagedObject, list[int]]]) -> dict[int, EnvelopePlace]:
        """Return the places of messages of batches, without those that only the payload records have, in a thread.

        Raises:
            StoreError: the folder of batches can't be read now.
        """
        folder, places = self._folder.open(), self._indexes.places
        parts = await asyncio.to_thread(lambda: [places(folder, batch, ids) for batch, ids in batches])
        return parts[0] if len(parts) == 1 else {id: place for part in parts for id, place in part.items()}

    async def read(self, places: Mapping[int, Place]) -> Envelopes:
        """Read payloads by message id; neighbouring ones in a batch with one read, in a thread.

        Raises:
            StoreError: the store or the folder of batches can't be read now; a retry may help.
        """
        envelopes: Envelopes = {}
        parts: dict[tuple[str, int, int], _Part] = {}
        part, contents = _Part("", -1, 0, []), None
        for id, place in places.items():
            if isinstance(place, bytes):
                envelopes[id] = place
            elif isinstance(place, EnvelopePlace):
                path, offset, length, _checksum, frame_bytes, _start = place
                size = frame_bytes or length
                if offset != part.offset or size != part.bytes or path != part.path:  # else as the message before
                    contents = self.frames.get(path, offset) if frame_bytes else None
                    part = parts.get((path, offset, size)) or _Part(path, offset, size, [])
                if contents is None:
                    if not part.messages:
                        parts[part[:3]] = part
                    part.messages.append((id, place))
                else:
                    envelopes[id] = envelope_of(id, place, contents)
            else:
                await self._join(id, place, envelopes)
        if parts:
            await asyncio.to_thread(_read_batches, self._folder.open(), list(parts.values()), envelopes, self.frames)
        return envelopes

    async def read_value(self, place: EnvelopePlace) -> bytes:
        """Return the value of a result in a segment.

        Raises:
            DamagedBatch: it is missing or damaged.
            StoreError: the segment can't be read now; a retry may help.
        """
        return require((await self.read({NO_MESSAGE: place}))[NO_MESSAGE])

    async def _join(self, id: int, chunks: Chunks, envelopes: Envelopes) -> None:
        parts: list[bytes | None] = []
        for start in range(0, chunks.records, _CHUNKS_AT_ONCE):
            numbers = range(start, min(start + _CHUNKS_AT_ONCE, chunks.records))
            parts += await self._store.get_many([keys.chunk_key(id, number) for number in numbers])
        envelope = b"".join(part or b"" for part in parts)
        if len(envelope) == chunks.size:
            envelopes[id] = envelope
        else:
            text = f"message {id}: its chunks hold {len(envelope)} bytes instead of {chunks.size}"
            envelopes[id] = CorruptRecord(text, key=keys.payload_key(id), offset=0)


def read_place(folder: Folder, id: int, place: EnvelopePlace) -> bytes | CorruptRecord:
    """Return the payload of one message in a batch or a segment, or its error. Blocks."""
    envelopes: Envelopes = {}
    part = _Part(place.path, place.offset, place.stored_bytes, [(id, place)])
    _read_batches(folder, [part], envelopes, FrameCache(0))
    return envelopes[id]


class _Part(NamedTuple):
    """Frame, or an envelope without one, with the wanted messages in it."""

    path: str
    offset: int
    bytes: int
    messages: list[tuple[int, EnvelopePlace]]

    @property
    def end(self) -> int:
        return self.offset + self.bytes


def _read_batches(folder: Folder, parts: list[_Part], envelopes: Envelopes, frames: FrameCache) -> None:
    """Read payloads from batch objects."""
    parts.sort(key=lambda part: part[:3])
    for _path, batch in groupby(parts, key=lambda part: part.path):
        for run in _runs(list(batch)):
            _read_run(folder, run, envelopes, frames)


def _read_run(folder: Folder, run: list[_Part], envelopes: Envelopes, frames: FrameCache) -> None:
    """Read neighbouring parts of one object together; if the disk can't read one of them, each alone."""
    start, end = run[0].offset, run[-1].end
    is_separate = end - start >= len(run) * _SEPARATE_BYTES
    ranges = [(part.offset, part.bytes) for part in run] if is_separate else [(start, end - start)]
    try:
        pieces = folder.read(run[0].path, ranges)
    except CorruptRecord as exc:
        if len(run) == 1:
            envelopes.update((id, exc) for id, _place in run[0].messages)
        else:
            for part in run:
                _read_run(folder, [part], envelopes, frames)
        return
    if not is_separate:
        pieces = [pieces[0][part.offset - start : part.end - start] for part in run]
    for part, data in zip(run, pieces, strict=True):
        _add(part, data, envelopes, frames)


def _add(part: _Part, data: bytes, envelopes: Envelopes, frames: FrameCache) -> None:
    """Add the payloads of a part, whose stored bytes are ``data``."""
    place = part.messages[0][1]
    if place.frame_bytes:
        size = max(place.start + place.length for _id, place in part.messages)
        try:
            data = decompress(data, min(max(size, FRAME_BYTES), MAX_ENVELOPE_BYTES))
        except FrameError as exc:
            envelopes.update((id, _damaged(id, place, str(exc))) for id, place in part.messages)
            return
    found = {id: envelope_of(id, place, data) for id, place in part.messages}
    envelopes.update(found)
    is_whole = all(isinstance(envelope, bytes) for envelope in found.values())
    if place.frame_bytes and len(data) > place.length and is_whole:
        frames.put(part.path, part.offset, data)


def envelope_of(id: int, place: EnvelopePlace, data: bytes) -> bytes | DamagedBatch:
    """Return the payload of a message from the contents of its frame, or an error if it is damaged."""
    _path, _offset, length, checksum, _frame_bytes, start = place
    envelope = data[start : start + length]
    if len(envelope) < length:
        return _damaged(id, place, f"only {len(envelope)} of {length} bytes are there")
    return envelope if crc32(envelope) == checksum else _damaged(id, place, "its checksum does not match")


def _runs(parts: list[_Part]) -> list[list[_Part]]:
    """Split sorted parts of one object into runs of one read each."""
    runs = [[parts[0]]]
    for part in parts[1:]:
        run = runs[-1]
        end = run[-1].end
        if end <= part.offset <= end + _MAX_GAP_BYTES and part.end - run[0].offset <= _MAX_RUN_BYTES:
            run.append(part)
        else:
            runs.append([part])
    return runs


def _damaged(id: int, place: EnvelopePlace, error: str) -> DamagedBatch:
    message_id, subject = (None, "a value") if id == NO_MESSAGE else (id, f"the payload of message {id}")
    text = f"{subject} in batch {place.path} at byte {place.offset} is damaged: {error}"
    return DamagedBatch(text, key=place.path.encode(), offset=place.offset, batch=place.path, message_id=message_id)
