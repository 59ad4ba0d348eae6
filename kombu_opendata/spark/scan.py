"""Records of a store as columns. What an executor reads is one state of the store, as of the opening of its part."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from ..errors import CorruptRecord
from ..offline import OfflineStore, open_store
from ..protocol.envelope import open_envelope
from ..staging.objects import open_folder
from ..staging.target import parse_payload_uri
from ..storage.records import active, attempts, config, keys, options, payload, settled, types
from ..storage.records.keys import RecordKind
from ..storage.records.payload import PayloadURI
from ..storage.staged_payloads import BatchReader, Place

#: rows of a batch; of one with payloads
ROWS = 4096
PAYLOAD_ROWS = 512

#: column → values
Columns = dict[str, list[Any]]
Source = Callable[[OfflineStore], AsyncIterator[Columns]]

_HEAD = struct.Struct("<QqqqIB")
_COUNT = struct.Struct("<H")
_ENTRY_AT = 8

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


def read(store: str, instance: str | None, source: Source) -> Iterator[Columns]:
    """What ``source`` finds in a store, a batch at a time; the store is closed at the end.

    Raises:
        StoreError, CorruptRecord: it can't be read.
    """
    loop = asyncio.new_event_loop()
    try:
        opened = loop.run_until_complete(open_store(store, instance))
        try:
            batches = source(opened)
            while True:
                try:
                    columns = loop.run_until_complete(_next(batches))
                except StopAsyncIteration:
                    return
                yield columns
        finally:
            loop.run_until_complete(opened.close())
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _next(batches: AsyncIterator[Columns]) -> Columns:
    return await batches.__anext__()


def ask(store: str, instance: str | None, question: Callable[[OfflineStore], Awaitable[Any]]) -> Any:
    """What one question about a store is answered."""

    async def asked() -> Any:
        async with await open_store(store, instance) as opened:
            return await question(opened)

    return asyncio.run(asked())


# ---------------------------------------------------------------------- messages
def messages(first_id: int, last_id: int, wanted: frozenset[str]) -> Source:
    """The messages with such ids, both ends included; ``wanted`` are columns of the table."""

    async def source(store: OfflineStore) -> AsyncIterator[Columns]:
        reader = _Payloads(store) if wanted & _PAYLOADS else None
        low, high = keys.metadata_key(first_id), keys.metadata_key(last_id) + b"\0"
        async for rows in store.scan_batches(low, high, batch=ROWS if reader is None else PAYLOAD_ROWS):
            columns = _metadata_columns(rows, wanted)
            if reader is not None:
                envelopes = await reader.envelopes([_id_of(key) for key, _ in rows])
                columns["payload"] = envelopes
                columns["payload_bytes"] = [None if one is None else len(one) for one in envelopes]
                if "body" in wanted:
                    columns["body"] = list(map(_body, envelopes))
            yield columns

    return source


def _id_of(metadata_key: bytes) -> int:
    return int.from_bytes(metadata_key[-8:], "big")


def _metadata_columns(rows: list[tuple[bytes, bytes]], wanted: frozenset[str]) -> Columns:
    ids, created, received, visible, expires = [], [], [], [], []
    names = {HEADERS[name].encode(): name for name in wanted & HEADERS.keys()}
    all_headers = "headers" in wanted
    found: list[dict[str, str]] = []
    maps: list[list[tuple[str, str]]] = []
    for key, value in rows:
        try:
            id, created_at, received_at, visible_at, retention, count = _HEAD.unpack_from(value)
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
    at = _HEAD.size
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
    import msgspec

    body = msgspec.msgpack.decode(opened[0])
    return body.encode("utf-8", "surrogateescape") if isinstance(body, str) else bytes(body)


# ---------------------------------------------------------------------- queues
_STATE_KINDS = {
    "available": RecordKind.ACTIVE,
    "in_flight": RecordKind.ACTIVE,
    "done": RecordKind.DONE,
    "failed": RecordKind.FAILED,
}


def entries(state: str, low: bytes, high: bytes | None, first_id: int, last_id: int) -> Source:
    """The entries of one state in the buckets from key to key."""
    is_active = state in ("available", "in_flight")

    async def source(store: OfflineStore) -> AsyncIterator[Columns]:
        columns: Columns = {name: [] for name in ("queue", "message_id", "priority", "at", "until", "attempts")}
        async for rows in store.scan_batches(low, high, batch=64):
            for key, value in rows:
                parsed = keys.parse(key)
                if parsed.kind is not _STATE_KINDS[state]:
                    continue
                found = _entries(state, is_active, key, value)
                found = [entry for entry in found if first_id <= entry[0] <= last_id]
                _append(columns, parsed.name or "", found, is_active)
            if len(columns["queue"]) >= ROWS:
                yield _named(state, columns)
                columns = {name: [] for name in columns}
        if columns["queue"]:
            yield _named(state, columns)

    return source


def _entries(state: str, is_active: bool, key: bytes, value: bytes) -> list[tuple[int, ...]]:
    if is_active:
        return list(active.decode(key, value)[state == "in_flight"])
    return list(settled.decode(key, value))


def _append(columns: Columns, queue: str, found: list[tuple[int, ...]], is_active: bool) -> None:
    if not found:
        return
    columns["queue"] += [queue] * len(found)
    names = ("message_id", "priority", "at", "until", "attempts") if is_active else ("message_id", "at", "attempts")
    for name, values in zip(names, zip(*found, strict=True), strict=True):
        columns[name] += values


def _named(state: str, columns: Columns) -> Columns:
    """The columns as the tables have them. Priorities are stored counted down; times of 0 are none."""
    columns["priority"] = [255 - priority for priority in columns["priority"]]
    at, until = columns.pop("at"), columns.pop("until")
    columns["state"] = [state] * len(at)
    columns["at"] = [ms or None for ms in at]
    name = {"available": "visible_at", "in_flight": "claimed_at", "done": "done_at", "failed": "failed_at"}[state]
    columns[name] = columns["at"]
    columns["expires_at" if state == "available" else "leased_until"] = [ms or None for ms in until]
    return columns


async def bucket_keys(store: OfflineStore, state: str, queues: frozenset[str] | None) -> list[tuple[str, bytes]]:
    """(queue, key) of each bucket of a state, by key."""
    found = []
    async for rows in store.scan_batches(*keys.kind_range(_STATE_KINDS[state]), batch=64):
        for key, _value in rows:
            name = keys.parse(key).name or ""
            if queues is None or name in queues:
                found.append((name, key))
    return found


def queue_rows() -> Source:
    """A row for each queue, with its figures and settings."""

    async def source(store: OfflineStore) -> AsyncIterator[Columns]:
        counts = await _counts(store)
        rows = []
        async for batch in store.scan_batches(*keys.kind_range(RecordKind.OPTIONS), batch=64):
            for key, value in batch:
                rows.append(await _queue(store, keys.parse(key).name or "", key, value, counts))
        if rows:
            yield {name: [row[name] for row in rows] for name in rows[0]}

    return source


async def _queue(
    store: OfflineStore, name: str, key: bytes, value: bytes, counts: dict[tuple[str, str], int]
) -> dict[str, Any]:
    ours = options.decode(key, value)
    config_key = keys.config_key(name)
    limits = config.decode(config_key, await store.get(config_key) or b"")
    return {
        "queue": name,
        **{state: counts.get((name, state), 0) for state in _STATE_KINDS},
        "max_attempts": limits.max_attempts,
        "done_retention_seconds": limits.done_retention_seconds,
        "failed_retention_seconds": ours.failed_retention_seconds,
        "lease_seconds": ours.lease_seconds,
        "filter": limits.filter,
        "arguments": types.json_utf8(ours.arguments)[2:].decode(),
    }


async def _counts(store: OfflineStore) -> dict[tuple[str, str], int]:
    """How many entries each queue has in each state."""
    counts: dict[tuple[str, str], int] = {}
    for kind in (RecordKind.ACTIVE, RecordKind.DONE, RecordKind.FAILED):
        async for rows in store.scan_batches(*keys.kind_range(kind), batch=64):
            for key, value in rows:
                name = keys.parse(key).name or ""
                if kind is RecordKind.ACTIVE:
                    available, in_flight = active.decode(key, value)
                    sizes = {"available": len(available), "in_flight": len(in_flight)}
                else:
                    sizes = {"done" if kind is RecordKind.DONE else "failed": _COUNT.unpack_from(value)[0]}
                for state, size in sizes.items():
                    counts[name, state] = counts.get((name, state), 0) + size
    return counts


# ---------------------------------------------------------------------- attempts
def attempt_rows(first_id: int, last_id: int) -> Source:
    """Who claimed which message, as far as it is stored; the first claim is attempt 1."""

    async def source(store: OfflineStore) -> AsyncIterator[Columns]:
        low, high = keys.attempts_key(first_id), keys.attempts_key(last_id) + b"\0"
        async for rows in store.scan_batches(low, high, batch=ROWS):
            columns: Columns = {"message_id": [], "attempt": [], "consumer": []}
            for key, value in rows:
                consumers = attempts.decode(key, value)
                columns["message_id"] += [keys.parse(key).id] * len(consumers)
                columns["attempt"] += range(1, len(consumers) + 1)
                columns["consumer"] += consumers
            yield columns

    return source


# ---------------------------------------------------------------------- ranges of ids
async def id_range(store: OfflineStore, kind: RecordKind) -> tuple[int, int] | None:
    """The lowest and the highest message id with a record of this kind."""
    low, high = keys.kind_range(kind)
    first = await store.scan(low, high, limit=1)
    if not first:
        return None
    start, end = int.from_bytes(first[0][0][-8:], "big"), keys.MAX_MESSAGE_ID - 1
    key_of = keys.metadata_key if kind is RecordKind.METADATA else keys.attempts_key
    lower = start
    while lower < end:  # the last id, by halving: scans go upwards only
        middle = (lower + end + 1) // 2
        found = await store.scan(key_of(middle), high, limit=1)
        if found:
            lower = int.from_bytes(found[0][0][-8:], "big")
        else:
            end = middle - 1
    return start, lower


async def first_received(store: OfflineStore, first: int, last: int, at_ms: int) -> int:
    """The first id from ``first`` to ``last`` that was received at this time or later; ids ascend with time."""
    high = keys.metadata_key(last) + b"\0"
    while first <= last:
        middle = (first + last) // 2
        found = await store.scan(keys.metadata_key(middle), high, limit=1)
        if found and _HEAD.unpack_from(found[0][1])[2] < at_ms:
            first = _id_of(found[0][0]) + 1
        else:
            last = middle - 1
    return first
