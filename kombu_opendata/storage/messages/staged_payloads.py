"""Reads payloads from batch objects in a thread; neighbouring ones with one read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple
from zlib import crc32

from ...errors import CorruptRecord
from ...staging.folder import Folder

#: the widest gap in one read, and the most bytes of one read
_MAX_GAP_BYTES = 16 << 10
_MAX_RUN_BYTES = 4 << 20


class Place(NamedTuple):
    """Where the payload of a message is."""

    id: int
    path: str
    offset: int
    length: int
    checksum: int


class BatchReader:
    """Reads the batch objects of one instance.

    Args:
        folder: opens the folder that holds them; raises as :func:`kombu_opendata.staging.folder_url.open_folder`.
    """

    def __init__(self, folder: Callable[[], Folder]) -> None:
        self._folder = folder

    async def read(self, places: Iterable[Place]) -> tuple[dict[int, bytes], dict[int, CorruptRecord]]:
        """The payloads by message id, and the errors of those that can't be read.

        Raises:
            StoreError: the folder can't be read now; trying again may help.
        """
        return await asyncio.to_thread(_read, self._folder(), sorted(places, key=lambda p: (p.path, p.offset)))


def _read(folder: Folder, places: list[Place]) -> tuple[dict[int, bytes], dict[int, CorruptRecord]]:
    found: dict[int, bytes] = {}
    broken: dict[int, CorruptRecord] = {}
    start = 0
    for end in range(1, len(places) + 1):
        if end < len(places) and places[end].path == places[start].path:
            continue
        same = places[start:end]
        start = end
        runs = _runs(same)
        ranges = [(run[0].offset, run[-1].offset + run[-1].length - run[0].offset) for run in runs]
        try:
            parts = folder.read(same[0].path, ranges)
        except CorruptRecord as exc:
            broken.update((place.id, exc) for place in same)
            continue
        for run, data in zip(runs, parts, strict=True):
            for place in run:
                at = place.offset - run[0].offset
                envelope = data[at : at + place.length]
                if len(envelope) == place.length and crc32(envelope) == place.checksum:
                    found[place.id] = envelope
                else:
                    broken[place.id] = _damaged(place, len(envelope))
    return found, broken


def _runs(places: list[Place]) -> list[list[Place]]:
    """Sorted places of one object, split into runs of one read each."""
    runs = [[places[0]]]
    for place in places[1:]:
        run = runs[-1]
        end = run[-1].offset + run[-1].length
        fits = place.offset + place.length - run[0].offset <= _MAX_RUN_BYTES
        if end <= place.offset <= end + _MAX_GAP_BYTES and fits:
            run.append(place)
        else:
            runs.append([place])
    return runs


def _damaged(place: Place, size: int) -> CorruptRecord:
    what = "its checksum does not match" if size == place.length else f"only {size} of {place.length} bytes are there"
    return CorruptRecord(
        f"the payload of message {place.id} in batch {place.path} at byte {place.offset} is damaged: {what}",
        key=place.path.encode(),
        offset=place.offset,
    )
