"""Table ``messages``: metadata, and payloads from their locations."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from ...offline import OfflineStore
from ...protocol.envelope import open_envelope
from ...staging.folder_url import StagedFolder
from ...storage.messages.payload_reader import PayloadReader, Place, locate
from ...storage.records import keys
from . import metadata_columns
from .store_scan import ROWS, Columns, Source, number_of

#: rows of a batch with payloads
PAYLOAD_ROWS = 512

_PAYLOADS = frozenset(("payload", "payload_bytes", "body"))


def messages(first_id: int, last_id: int, wanted: frozenset[str]) -> Source:
    """Return the wanted columns of the messages with these ids, both ends included."""

    async def source(store: OfflineStore) -> AsyncIterator[Columns]:
        reader = _Payloads(store) if wanted & _PAYLOADS else None
        low, high = keys.metadata_key(first_id), keys.metadata_key(last_id) + b"\0"
        async for rows in store.scan_rows(low, high, batch=ROWS if reader is None else PAYLOAD_ROWS):
            columns = metadata_columns.columns(rows, wanted)
            if reader is not None:
                envelopes = await reader.envelopes([number_of(key) for key, _ in rows.pairs()])
                columns["payload"] = envelopes
                columns["payload_bytes"] = [None if envelope is None else len(envelope) for envelope in envelopes]
                if "body" in wanted:
                    columns["body"] = list(map(_body, envelopes))
            yield columns

    return source


class _Payloads:
    """Reader of envelopes at all their locations."""

    def __init__(self, store: OfflineStore) -> None:
        self._store = store
        self._reader = PayloadReader(store, StagedFolder(store.location.url, store.location.instance))

    async def envelopes(self, ids: list[int]) -> list[bytes | None]:
        """Return the envelopes of these messages; None where the payload is missing.

        Raises:
            CorruptRecord: a payload is damaged.
        """
        places: dict[int, Place] = {}
        low, high = keys.payload_key(ids[0]), keys.payload_key(ids[-1]) + b"\0"
        async for rows in self._store.scan_batches(low, high, batch=PAYLOAD_ROWS):
            for key, value in rows:
                id = int.from_bytes(key[2:], "big")
                places[id] = locate(id, value)
        read = await self._reader.read(places)
        for exc in read.errors.values():
            raise exc
        return [read.found.get(id) for id in ids]


def _body(envelope: bytes | None) -> bytes | None:
    """Return the serialized body; None if the bytes are not an envelope."""
    opened = None if envelope is None else open_envelope(envelope, len(envelope))
    if opened is None:
        return None
    body = msgspec.msgpack.decode(opened[0])
    return body.encode("utf-8", "surrogateescape") if isinstance(body, str) else bytes(body)
