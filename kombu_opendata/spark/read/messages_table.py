"""The table ``messages``: metadata, and payloads from wherever they are stored."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from ...offline import OfflineStore
from ...protocol.envelope import open_envelope
from ...staging.batch_uri import parse_payload_uri
from ...staging.folder_url import open_folder
from ...storage.messages.staged_payloads import BatchReader, Place
from ...storage.records import keys, payload, types
from ...storage.records.payload import PayloadURI
from . import metadata_columns
from .store_scan import ROWS, Columns, Source, number_of

#: rows of a batch with payloads
PAYLOAD_ROWS = 512

_PAYLOADS = frozenset(("payload", "payload_bytes", "body"))


def messages(first_id: int, last_id: int, wanted: frozenset[str]) -> Source:
    """The wanted columns of the messages with these ids, both ends included."""

    async def source(store: OfflineStore) -> AsyncIterator[Columns]:
        reader = _Payloads(store) if wanted & _PAYLOADS else None
        low, high = keys.metadata_key(first_id), keys.metadata_key(last_id) + b"\0"
        async for rows in store.scan_rows(low, high, batch=ROWS if reader is None else PAYLOAD_ROWS):
            columns = metadata_columns.columns(rows, wanted)
            if reader is not None:
                envelopes = await reader.envelopes([number_of(key) for key, _ in rows.pairs()])
                columns["payload"] = envelopes
                columns["payload_bytes"] = [None if one is None else len(one) for one in envelopes]
                if "body" in wanted:
                    columns["body"] = list(map(_body, envelopes))
            yield columns

    return source


class _Payloads:
    """Reads envelopes, wherever they are stored."""

    def __init__(self, store: OfflineStore) -> None:
        self._store = store
        location = store.location
        url = f"{location.url.rstrip('/')}/{location.instance}.staged"
        self._batches = BatchReader(lambda: open_folder(url, {}))

    async def envelopes(self, ids: list[int]) -> list[bytes | None]:
        """The envelopes of these messages; None where the payload is missing.

        Raises:
            CorruptRecord: a payload is damaged.
        """
        found: dict[int, bytes] = {}
        places = []
        low, high = keys.payload_key(ids[0]), keys.payload_key(ids[-1]) + b"\0"
        async for rows in self._store.scan_batches(low, high, batch=PAYLOAD_ROWS):
            for key, value in rows:
                id = int.from_bytes(key[2:], "big")
                where = payload.decode(key, value)
                if isinstance(where, bytes):
                    found[id] = where
                elif (place := parse_payload_uri(where.uri)) is not None:
                    places.append(Place(id, *place))
                else:
                    found[id] = await self._chunks(id, key, where)
        if places:
            staged, broken = await self._batches.read(places)
            for exc in broken.values():
                raise exc
            found |= staged
        return [found.get(id) for id in ids]

    async def _chunks(self, id: int, key: bytes, where: PayloadURI) -> bytes:
        chunks = payload.parse_chunks_uri(where.uri)
        if chunks is None:
            raise types.corrupt(key, 0, f"a payload at {where.uri}, which can't be read")
        return b"".join([await self._store.get(keys.chunk_key(id, number)) or b"" for number in range(chunks[0])])


def _body(envelope: bytes | None) -> bytes | None:
    """The body as the serializer made it; None if the bytes are not an envelope."""
    opened = None if envelope is None else open_envelope(envelope, len(envelope))
    if opened is None:
        return None
    body = msgspec.msgpack.decode(opened[0])
    return body.encode("utf-8", "surrogateescape") if isinstance(body, str) else bytes(body)
