"""The reader of stored payloads: inline, in chunks, and in batch objects."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Protocol
from zlib import crc32

from ...errors import CorruptRecord, DamagedBatch
from ...staging.batch_format import EnvelopePlace, parse_payload_uri
from ...staging.folder import Folder
from ...staging.folder_url import StagedFolder
from ..records import keys, payload
from ..records.payload import Chunks

#: chunks of a large payload that are read at the same time
_CHUNKS_AT_ONCE = 16
#: the widest gap between payloads that one read of a batch includes
_MAX_GAP_BYTES = 16 << 10
#: the most bytes of one such read
_MAX_RUN_BYTES = 4 << 20

#: the place of a payload: inline, in chunk records, or in a batch object
Place = bytes | Chunks | EnvelopePlace


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
    key = keys.payload_key(id)
    if record is None:
        raise CorruptRecord(f"the payload of message {id} is missing", key=key, offset=0)
    decoded = payload.decode(key, record)
    if isinstance(decoded, bytes):
        return decoded
    place = payload.parse_chunks_uri(decoded.uri) or parse_payload_uri(decoded.uri)
    if place is None:
        raise CorruptRecord(f"the payload of message {id} is at {decoded.uri}, an unknown URI", key=key, offset=0)
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


class PayloadReader:
    """The reader of payloads in a store. A damaged payload is an error of its message only."""

    def __init__(self, store: ChunkRecords, folder: StagedFolder) -> None:
        self._store, self._folder = store, folder

    async def read(self, places: Mapping[int, Place]) -> Envelopes:
        """Read payloads by message id; neighbouring ones in a batch with one read, in a thread.

        Raises:
            StoreError: the store or the folder of batches can't be read now; a retry may help.
        """
        envelopes: Envelopes = {}
        batch_places: list[tuple[int, EnvelopePlace]] = []
        for id, place in places.items():
            if isinstance(place, bytes):
                envelopes[id] = place
            elif isinstance(place, EnvelopePlace):
                batch_places.append((id, place))
            else:
                await self._join(id, place, envelopes)
        if batch_places:
            batch_places.sort(key=lambda item: (item[1].path, item[1].offset))
            await asyncio.to_thread(_read_batches, self._folder.open(), batch_places, envelopes)
        return envelopes

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


def _read_batches(folder: Folder, places: list[tuple[int, EnvelopePlace]], envelopes: Envelopes) -> None:
    """Read payloads, sorted by their places, from batch objects."""
    for path, batch in groupby(places, key=lambda item: item[1].path):
        runs = _runs(list(batch))
        starts = [run[0][1].offset for run in runs]
        ranges = [(at, run[-1][1].offset + run[-1][1].length - at) for at, run in zip(starts, runs, strict=True)]
        try:
            parts = folder.read(path, ranges)
        except CorruptRecord as exc:
            envelopes.update((id, exc) for run in runs for id, _place in run)
            continue
        for at, run, data in zip(starts, runs, parts, strict=True):
            for id, place in run:
                envelope = data[place.offset - at : place.offset - at + place.length]
                whole = len(envelope) == place.length and crc32(envelope) == place.checksum
                envelopes[id] = envelope if whole else _damaged(id, place, len(envelope))


def _runs(places: list[tuple[int, EnvelopePlace]]) -> list[list[tuple[int, EnvelopePlace]]]:
    """Split sorted places of one object into runs of one read each."""
    runs = [[places[0]]]
    for id, place in places[1:]:
        run = runs[-1]
        end = run[-1][1].offset + run[-1][1].length
        fits = place.offset + place.length - run[0][1].offset <= _MAX_RUN_BYTES
        if end <= place.offset <= end + _MAX_GAP_BYTES and fits:
            run.append((id, place))
        else:
            runs.append([(id, place)])
    return runs


def _damaged(id: int, place: EnvelopePlace, size: int) -> DamagedBatch:
    error = "its checksum does not match" if size == place.length else f"only {size} of {place.length} bytes are there"
    text = f"the payload of message {id} in batch {place.path} at byte {place.offset} is damaged: {error}"
    return DamagedBatch(text, key=place.path.encode(), offset=place.offset, batch=place.path, message_id=id)
