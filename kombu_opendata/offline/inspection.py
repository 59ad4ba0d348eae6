"""``store inspect``: any record, a message with everything about it, a queue; as plain structures."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import CorruptRecord, NotFound, RequestError, StoreError
from ..protocol.envelope import UNREADABLE
from ..protocol.envelope import decode as decode_envelope
from ..staging.batch_reader import read_payload
from ..staging.batch_uri import parse_payload_uri
from ..staging.local_folder import LocalFolder
from ..storage import records as stored
from ..storage.records import keys, payload, routes_block
from ..storage.records.active import AvailableMessage, InFlightMessage
from ..storage.records.keys import RecordKind
from ..storage.records.kinds import PREFIXES
from .records.message_scan import AVAILABLE, BUCKETS, IN_FLIGHT, entries_of
from .records.offline_store import OfflineStore
from .records.readable import preview, readable
from .verify import OnProgress, Progress, kind_of

DEFAULT_LIMIT = 100
PREVIEW_BYTES = 256


@dataclass(frozen=True, slots=True)
class Record:
    """One record.

    Attributes:
        key: in hexadecimal.
        kind: what it is; ``unknown`` when its key is of no known kind.
        of: what the key says: queue, bucket, message id, ….
        value: decoded, as texts, numbers, lists and maps; None when it does not decode.
        size: of the value, bytes.
        problem: why it does not decode; empty when it does.
    """

    key: str
    kind: str
    of: dict[str, Any]
    value: Any
    size: int
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class PlaceDetails:
    """A message in a queue; ``entry`` has the fields of its state, ``holder`` is the session that holds it."""

    queue: str
    state: str
    bucket: int
    entry: dict[str, Any]
    holder: str = ""
    consumer: str = ""


@dataclass(slots=True)
class MessageDetails:
    """Everything about a message.

    Attributes:
        metadata: None when there is none.
        payload_bytes: its size; None when it is missing.
        payload_uri: where it is, when it is not in its record.
        payload_preview: its first bytes, as text where they are text.
        envelope: content type, headers, properties, exchange and routing key, and the size of the body; None when the
            payload is no envelope.
        routes: how many queues need it, as stored; None when that is not stored, as it is one.
        attempts: who claimed it and did not finish.
        dead_letters: those that wait to be published.
    """

    id: int
    metadata: dict[str, Any] | None = None
    payload_bytes: int | None = None
    payload_uri: str = ""
    payload_preview: Any = None
    envelope: dict[str, Any] | None = None
    routes: int | None = None
    attempts: list[str] = field(default_factory=list)
    places: list[PlaceDetails] = field(default_factory=list)
    dead_letters: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class QueueDetails:
    """A queue: its settings, its bindings, and the numbers of its buckets."""

    name: str
    config: dict[str, Any]
    options: dict[str, Any]
    bindings: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    buckets: dict[str, list[int]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


async def inspect(store: OfflineStore, what: bytes | int | str) -> Record | MessageDetails | QueueDetails:
    """A record (by its key), a message (by its id) or a queue (by its name).

    Raises:
        NotFound: there is none.
        CorruptRecord, StoreError: it can't be read.
    """
    if isinstance(what, bytes):
        return await record(store, what)
    return await (message(store, what) if isinstance(what, int) else queue(store, what))


# ---- records
async def record(store: OfflineStore, key: bytes) -> Record:
    """The record with this key.

    Raises:
        NotFound: there is none.
    """
    value = await store.get(key)
    if value is None:
        raise NotFound(f"there is no record with the key {key.hex()}", key=key.hex())
    return as_record(key, value)


async def scan(
    store: OfflineStore,
    *,
    kind: RecordKind | str | None = None,
    queue: str | None = None,
    prefix: bytes = b"",
    start: bytes = b"",
    limit: int = DEFAULT_LIMIT,
) -> AsyncIterator[Record]:
    """Records in the order of their keys.

    Args:
        kind: only those; a :class:`RecordKind` or its name (``active``, ``dead letter``, …).
        queue: only this queue's own; ``kind`` is one of those that queues have then, or all of them.
        prefix: only keys that begin like this.
        start: only keys from here on; the last one's key and a 0 byte goes on behind it.
        limit: at most so many.

    Raises:
        RequestError: an unknown kind, a kind that queues don't have, or a limit below 1.
    """
    if limit < 1:
        raise RequestError(f"a limit of {limit}; at least 1 record can be shown", limit=limit)
    left = limit
    for low, high in _ranges(kind, queue, prefix):
        async for rows in store.scan_batches(max(low, start), high, batch=min(left, 200)):
            for key, value in rows[:left]:
                yield as_record(key, value)
            left -= min(left, len(rows))
            if not left:
                return


def _ranges(kind: RecordKind | str | None, queue: str | None, prefix: bytes) -> list[tuple[bytes, bytes | None]]:
    if isinstance(kind, str):
        names = {known.value: known for known in RecordKind} | {known.name.lower(): known for known in RecordKind}
        if kind not in names:
            text = f"there are no records of the kind {kind!r}: use {', '.join(sorted(k.value for k in RecordKind))}"
            raise RequestError(text, kind=kind)
        kind = names[kind]
    if queue is not None:
        kinds = list(_OF_QUEUE) if kind is None else [kind]
        if not _OF_QUEUE.keys() >= set(kinds):
            text = f"records of the kind {kinds[0].value!r} are not a queue's own: leave out the queue"
            raise RequestError(text, kind=kinds[0].value, queue=queue)
        return [_within(keys.prefix_range(_OF_QUEUE[each](queue)), prefix) for each in kinds]
    if kind is not None:
        return [_within(keys.kind_range(kind), prefix)]
    return [keys.prefix_range(prefix) if prefix else (b"", None)]


_OF_QUEUE = {
    RecordKind.ACTIVE: keys.active_prefix,
    RecordKind.DONE: keys.done_prefix,
    RecordKind.FAILED: keys.failed_prefix,
    RecordKind.ARCHIVED_FAILED: keys.archived_failed_prefix,
    RecordKind.CONFIG: keys.config_key,
    RecordKind.OPTIONS: keys.options_key,
    RecordKind.QUEUE_COUNTS: keys.queue_counts_key,
}


def _within(outer: tuple[bytes, bytes], prefix: bytes) -> tuple[bytes, bytes | None]:
    if not prefix:
        return outer
    low, high = keys.prefix_range(prefix)
    return max(outer[0], low), min(outer[1], high)


def as_record(key: bytes, value: bytes) -> Record:
    """A record as a structure, decoded as far as it can be."""
    kind = kind_of(key)
    name = kind.value if kind is not None else "unknown"
    try:
        parsed = keys.parse(key)
        decoded: Any = stored.decode_any(key, value)
    except CorruptRecord as exc:
        return Record(key.hex(), name, {}, None, len(value), exc.text)
    if parsed.kind in BUCKETS:
        decoded = _bucket(parsed.kind, decoded)
    elif parsed.kind in _FIELD_NAMES:
        decoded = dict(zip(_FIELD_NAMES[parsed.kind], decoded, strict=True))
    of = {what: readable(part) for what, part in parsed._asdict().items() if part is not None and what != "kind"}
    return Record(key.hex(), name, of, readable(decoded), len(value))


#: kinds that decode to a plain tuple
_FIELD_NAMES = {RecordKind.SEQ_BLOCK: ("base", "size")}


def _bucket(kind: RecordKind, decoded: Any) -> Any:
    if kind is RecordKind.ACTIVE:
        available, in_flight = decoded
        return {
            "available": [_entry(AVAILABLE, entry) for entry in available],
            "in_flight": [_entry(IN_FLIGHT, entry) for entry in in_flight],
        }
    return [_entry(state, entry) for state, entry in entries_of(kind, decoded)]


def _entry(state: str, entry: tuple[int, ...]) -> dict[str, Any]:
    if state == AVAILABLE:
        return AvailableMessage(*entry)._asdict()
    if state == IN_FLIGHT:
        return InFlightMessage(*entry)._asdict()
    return dict(zip(("message_id", "settled_at_ms", "attempts"), entry, strict=True))


# ---- a message
async def message(store: OfflineStore, id: int, *, progress: OnProgress = lambda _: None) -> MessageDetails:
    """Everything about a message. To find its places, the buckets of all queues are read.

    Raises:
        NotFound: no record speaks of it.
        RequestError: the id is out of range.
        CorruptRecord: one of its records does not decode.
    """
    found = MessageDetails(id)
    found.metadata = await _decoded(store, keys.metadata_key(id))
    found.routes = await _routes(store, id)
    found.attempts = await _decoded(store, keys.attempts_key(id)) or []
    await _payload(store, found)
    found.places = [place async for place in _places(store, id, progress)]
    await _holders(store, found)
    low = PREFIXES[RecordKind.DEAD_LETTER] + id.to_bytes(8, "big")
    async for rows in store.scan_batches(*keys.prefix_range(low)):
        for key, value in rows:
            letter = as_record(key, value)
            found.dead_letters.append({"queue": letter.of.get("name"), **(letter.value or {})})
    if found.metadata is None and found.payload_bytes is None and not found.places and not found.dead_letters:
        raise NotFound(f"there is no message {id}", message_id=id)
    return found


async def _routes(store: OfflineStore, id: int) -> int | None:
    """What is stored of the number of queues, 0 if only the log keeps the message.

    A store that no broker opened for long has records of one message.
    """
    key = keys.routes_block_key(id)
    value = await store.get(key)
    count = routes_block.decode(key, value).get(id) if value is not None else None
    if count is not None and count >= routes_block.KEPT_IN_CHUNKS:
        return 0
    own: int | None = await _decoded(store, keys.routes_key(id))
    return max((found for found in (count, own) if found is not None), default=None)


async def _decoded(store: OfflineStore, key: bytes) -> Any:
    value = await store.get(key)
    return None if value is None else readable(stored.decode_any(key, value))


async def _payload(store: OfflineStore, found: MessageDetails) -> None:
    key = keys.payload_key(found.id)
    value = await store.get(key)
    if value is None:
        return
    where = payload.decode(key, value)
    body: bytes | None = where if isinstance(where, bytes) else None
    if isinstance(where, payload.PayloadURI):
        found.payload_uri = where.uri
        chunks = payload.parse_chunks_uri(where.uri)
        body = await _chunks(store, found.id, chunks[0]) if chunks is not None else _staged(store, where.uri)
    if body is not None:
        found.payload_bytes = len(body)
        found.payload_preview = preview(body, PREVIEW_BYTES)
        found.envelope = _envelope(body)


def _staged(store: OfflineStore, uri: str) -> bytes | None:
    """The payload in a batch object of a local store; None if it is elsewhere, gone or damaged."""
    place, folder = parse_payload_uri(uri), store.location.staged
    if place is None or folder is None:
        return None
    files = LocalFolder(folder)
    try:
        return read_payload(files, *place)
    except StoreError:
        return None
    finally:
        files.close()


async def _chunks(store: OfflineStore, id: int, count: int) -> bytes:
    return b"".join([await store.get(keys.chunk_key(id, number)) or b"" for number in range(count)])


def _envelope(body: bytes) -> dict[str, Any] | None:
    with contextlib.suppress(*UNREADABLE):
        content, kind, encoding, headers, properties, exchange, routing_key = decode_envelope(body)
        return {
            "body_bytes": len(content) if isinstance(content, (bytes, str)) else None,
            "body_preview": readable(content, PREVIEW_BYTES),
            "content_type": kind,
            "content_encoding": encoding,
            "headers": readable(headers),
            "properties": readable(properties),
            "exchange": exchange,
            "routing_key": routing_key,
        }
    return None


async def _places(store: OfflineStore, id: int, progress: OnProgress) -> AsyncIterator[PlaceDetails]:
    done = 0
    for kind, decode in BUCKETS.items():
        async for rows in store.scan_batches(*keys.kind_range(kind)):
            for key, value in rows:
                parsed = keys.parse(key)
                for state, entry in entries_of(kind, decode(key, value)):
                    if entry[0] == id:
                        yield PlaceDetails(parsed.name or "", state, parsed.bucket or 0, _entry(state, entry))
            done += len(rows)
            progress(Progress("records", done))


async def _holders(store: OfflineStore, found: MessageDetails) -> None:
    """Which session holds the message, where it is in flight."""
    held = {place.queue: place for place in found.places if place.state == IN_FLIGHT}
    if not held:
        return
    async for rows in store.scan_batches(*keys.kind_range(RecordKind.LEASES)):
        for key, value in rows:
            leases = stored.leases.decode(key, value)
            for queue in held.keys() & leases.held.keys():
                if found.id in leases.held[queue]:
                    held[queue].holder, held[queue].consumer = key[2:].hex(), leases.consumer


# ---- a queue
async def queue(store: OfflineStore, name: str) -> QueueDetails:
    """A queue.

    Raises:
        NotFound: there is none.
    """
    config = await _decoded(store, keys.config_key(name))
    options = await _decoded(store, keys.options_key(name))
    if config is None and options is None:
        raise NotFound(f"there is no queue {name!r} in {store.location}", queue=name)
    found = QueueDetails(name, config or {}, options or {})
    for kind, decode in BUCKETS.items():
        numbers = found.buckets.setdefault(kind.value, [])
        async for rows in store.scan_batches(*keys.prefix_range(_OF_QUEUE[kind](name))):
            for key, value in rows:
                numbers.append(keys.parse(key).bucket or 0)
                for state, _ in entries_of(kind, decode(key, value)):
                    found.counts[state] = found.counts.get(state, 0) + 1
    async for rows in store.scan_batches(*keys.kind_range(RecordKind.BINDING)):
        for key, value in rows:
            parsed = keys.parse(key)
            if parsed.queue == name:
                arguments = readable(stored.decode_any(key, value))
                bound = {"exchange": parsed.name, "routing_key": parsed.routing_key, "arguments": arguments}
                found.bindings.append(bound)
    return found
