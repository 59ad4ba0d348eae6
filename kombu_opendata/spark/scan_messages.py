"""The table ``messages``: metadata, and payloads wherever they are."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator

import msgspec

from ..errors import CorruptRecord
from ..offline import OfflineStore
from ..protocol.envelope import open_envelope
from ..staging.objects import open_folder
from ..staging.target import parse_payload_uri
from ..storage.records import keys, payload, types
from ..storage.records.payload import PayloadURI
from ..storage.staged_payloads import BatchReader, Place
from .scan import METADATA_HEAD, ROWS, Columns, Source, number_of

#: rows of a batch with payloads
PAYLOAD_ROWS = 512

#: columns of ``messages`` that are metadata headers, and those headers
HEADERS = {
    "task": "task",
    "task_id": "id",
    "exchange": "exchange",
    "routing_key": "routing_key",
    "priority": "priority",
    "content_type": "content_type",
}
_PAYLOADS = frozenset(("payload", "payload_bytes", "body"))


def messages(first_id: int, last_id: int, wanted: frozenset[str]) -> Source:
    """The messages with such ids, both ends included; ``wanted`` are columns of the table."""

    async def source(store: OfflineStore) -> AsyncIterator[Columns]:
        reader = _Payloads(store) if wanted & _PAYLOADS else None
        low, high = keys.metadata_key(first_id), keys.metadata_key(last_id) + b"\0"
        async for rows in store.scan_batches(low, high, batch=ROWS if reader is None else PAYLOAD_ROWS):
            columns = _metadata_columns(rows, wanted)
            if reader is not None:
                envelopes = await reader.envelopes([number_of(key) for key, _ in rows])
                columns["payload"] = envelopes
                columns["payload_bytes"] = [None if one is None else len(one) for one in envelopes]
                if "body" in wanted:
                    columns["body"] = list(map(_body, envelopes))
            yield columns

    return source


def _metadata_columns(rows: list[tuple[bytes, bytes]], wanted: frozenset[str]) -> Columns:
    ids, created, received, visible, expires = [], [], [], [], []
    names = {HEADERS[name].encode(): name for name in wanted & HEADERS.keys()}
    all_headers = "headers" in wanted
    found: list[dict[str, str]] = []
    maps: list[list[tuple[str, str]]] = []
    for key, value in rows:
        try:
            id, created_at, received_at, visible_at, retention, count = METADATA_HEAD.unpack_from(value)
            headers = _headers(value, count, None if all_headers else names)
        except (struct.error, UnicodeDecodeError, IndexError) as exc:
            raise CorruptRecord(f"record {key.hex()}: {exc}; verify the store", key=key, offset=0) from exc
        ids.append(id)
        created.append(created_at)
        received.append(received_at)
        visible.append(visible_at or None)
        expires.append(received_at + 1000 * retention if retention else None)
        if all_headers:
            maps.append(list(headers.items()))
            headers = {column: headers[name] for column, name in HEADERS.items() if name in headers}
        found.append(headers)
    columns: Columns = {
        "message_id": ids,
        "created_at": created,
        "received_at": received,
        "visible_at": visible,
        "expires_at": expires,
        "headers": maps,
    }
    for name in names.values():
        columns[name] = [headers.get(name) for headers in found]
    if "priority" in columns:
        columns["priority"] = [int(text) if text and text.isdecimal() else None for text in columns["priority"]]
    return columns


def _headers(value: bytes, count: int, names: dict[bytes, str] | None) -> dict[str, str]:
    """The headers of a metadata record: column → text of those in ``names``, or all by their own names.

    The loop is the cost of reading messages, so it makes texts of what is wanted only.
    """
    found: dict[str, str] = {}
    at = METADATA_HEAD.size
    for _ in range(count):
        start = at + 2
        middle = start + (value[at] | value[at + 1] << 8)
        name = value[start:middle]
        start = middle + 2
        at = start + (value[middle] | value[middle + 1] << 8)
        if names is None:
            found[name.decode()] = value[start:at].decode()
        elif name in names:
            found[names[name]] = value[start:at].decode()
    if at > len(value):
        raise IndexError("a header goes on after the end of the record")
    return found


class _Payloads:
    """Envelopes by message id, wherever they are."""

    def __init__(self, store: OfflineStore) -> None:
        self._store = store
        location = store.location
        url = f"{location.url.rstrip('/')}/{location.instance}.staged"
        self._batches = BatchReader(lambda: open_folder(url, {}))

    async def envelopes(self, ids: list[int]) -> list[bytes | None]:
        """None for one that is not there.

        Raises:
            CorruptRecord: one is damaged.
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
    """The body as the serializer made it; None for bytes that are no envelope."""
    opened = None if envelope is None else open_envelope(envelope)
    if opened is None:
        return None
    body = msgspec.msgpack.decode(opened[0])
    return body.encode("utf-8", "surrogateescape") if isinstance(body, str) else bytes(body)
