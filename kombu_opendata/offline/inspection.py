"""Command ``store inspect``: a message with all its records, or a queue, as plain structures."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import NotFound, StoreError
from ..protocol.envelope import UNREADABLE
from ..protocol.envelope import decode as decode_envelope
from ..staging.folder_url import StagedFolder
from ..storage import records as stored
from ..storage.messages.payload_reader import PayloadReader, locate, require
from ..storage.records import keys, payload, routes_block, session_records
from ..storage.records.keys import RecordKind
from .records.message_facts import BUCKETS, IN_FLIGHT, entries_of, state_at
from .records.offline_store import OfflineStore
from .records.record_view import QUEUE_PREFIXES, Record, as_entry, as_record, preview, readable, record


@dataclass(slots=True)
class MessageDetails:
    """All records about a message.

    Attributes:
        metadata: None if it is missing.
        payload_bytes: the size of the payload; None if it is missing or can't be read.
        payload_error: the reason why it can't be read.
        payload_uri: the location of the payload, if it is not in its record.
        payload_preview: the first bytes of the payload, as text if they are text.
        envelope: content type, headers, properties, exchange, routing key, and the size of the body; None if the
            payload is not an envelope.
        routes: the stored number of queues that need the message; None if it is not stored, which means one queue.
        attempts: the consumers that leased the message and did not settle it.
        places: for each queue that has the message: queue, state, bucket, and the fields of its entry; for a message in
            flight also the session (``holder``) and the consumer of its lease.
        dead_letters: the dead letters that are not published yet.
    """

    id: int
    metadata: dict[str, Any] | None = None
    payload_bytes: int | None = None
    payload_error: str = ""
    payload_uri: str = ""
    payload_preview: Any = None
    envelope: dict[str, Any] | None = None
    routes: int | None = None
    attempts: list[str] = field(default_factory=list)
    places: list[dict[str, Any]] = field(default_factory=list)
    dead_letters: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class QueueDetails:
    """Queue: its settings, its bindings, its messages by state, and the numbers of its buckets."""

    name: str
    config: dict[str, Any]
    options: dict[str, Any]
    bindings: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    buckets: dict[str, list[int]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


async def inspect(store: OfflineStore, what: bytes | int | str) -> Record | MessageDetails | QueueDetails:
    """Return a record (by its key), a message (by its id) or a queue (by its name).

    Raises:
        NotFound: there is no such record, message or queue.
        CorruptRecord, StoreError: it can't be read.
    """
    if isinstance(what, bytes):
        return await record(store, what)
    return await (message(store, what) if isinstance(what, int) else queue(store, what))


# ---- a message
async def message(store: OfflineStore, id: int) -> MessageDetails:
    """Return all records about a message. This reads the buckets of all queues to find the message.

    Raises:
        NotFound: no record mentions the message.
        RequestError: the id is out of range.
        CorruptRecord: one of its records does not decode.
    """
    details = MessageDetails(id)
    details.metadata = await _decoded(store, keys.metadata_key(id))
    details.routes = await _routes(store, id)
    details.attempts = await _decoded(store, keys.attempts_key(id)) or []
    await _payload(store, details)
    details.places = [place async for place in _places(store, id)]
    await _holders(store, details)
    low = RecordKind.DEAD_LETTER.prefix + id.to_bytes(8, "big")
    async for rows in store.scan_batches(*keys.prefix_range(low)):
        for key, value in rows:
            letter = as_record(key, value)
            details.dead_letters.append({"queue": letter.of.get("name"), **(letter.value or {})})
    has_payload = details.payload_bytes is not None or details.payload_error
    if details.metadata is None and not has_payload and not details.places and not details.dead_letters:
        raise NotFound(f"there is no message {id}", message_id=id)
    return details


async def _routes(store: OfflineStore, id: int) -> int | None:
    """Return the stored number of queues that need the message; 0 if only the log keeps it."""
    key = keys.routes_block_key(id)
    value = await store.get(key)
    count = routes_block.decode(key, value).get(id) if value is not None else None
    return 0 if count is not None and count >= routes_block.KEPT_IN_CHUNKS else count


async def _decoded(store: OfflineStore, key: bytes) -> Any:
    value = await store.get(key)
    return None if value is None else readable(stored.decode_any(key, value))


async def _payload(store: OfflineStore, details: MessageDetails) -> None:
    record = await store.get(keys.payload_key(details.id))
    if record is None:
        return
    folder = StagedFolder(store.location.url, store.location.instance)
    try:
        decoded = payload.decode(keys.payload_key(details.id), record)
        details.payload_uri = decoded.uri if isinstance(decoded, payload.PayloadURI) else ""
        read = await PayloadReader(store, folder).read({details.id: locate(details.id, record)})
        body = require(read[details.id])
    except StoreError as exc:
        details.payload_error = exc.text
        return
    details.payload_bytes = len(body)
    details.payload_preview = preview(body)
    details.envelope = _envelope(body)


def _envelope(body: bytes) -> dict[str, Any] | None:
    with contextlib.suppress(*UNREADABLE):
        content, kind, encoding, headers, properties, exchange, routing_key = decode_envelope(body)
        return {
            "body_bytes": len(content) if isinstance(content, (bytes, str)) else None,
            "body_preview": readable(content),
            "content_type": kind,
            "content_encoding": encoding,
            "headers": readable(headers),
            "properties": readable(properties),
            "exchange": exchange,
            "routing_key": routing_key,
        }
    return None


async def _places(store: OfflineStore, id: int) -> AsyncIterator[dict[str, Any]]:
    now = store.clock.now_ms()
    for kind, decode in BUCKETS.items():
        async for rows in store.scan_batches(*keys.kind_range(kind)):
            for key, value in rows:
                parsed = keys.parse(key)
                for state, entry in entries_of(kind, decode(key, value)):
                    if entry[0] == id:
                        yield {
                            "queue": parsed.name or "",
                            "state": state_at(state, entry, now),
                            "bucket": parsed.bucket or 0,
                            "entry": as_entry(state, entry),
                            "holder": "",
                            "consumer": "",
                        }


async def _holders(store: OfflineStore, details: MessageDetails) -> None:
    """Find the sessions that lease the message, if it is in flight."""
    places_by_queue = {place["queue"]: place for place in details.places if place["state"] == IN_FLIGHT}
    if not places_by_queue:
        return
    async for rows in store.scan_batches(*keys.kind_range(RecordKind.LEASES)):
        for key, value in rows:
            leases = session_records.decode_leases(key, value)
            for queue in places_by_queue.keys() & leases.held.keys():
                if details.id in leases.held[queue]:
                    places_by_queue[queue] |= {"holder": key[2:].hex(), "consumer": leases.consumer}


# ---- a queue
async def queue(store: OfflineStore, name: str) -> QueueDetails:
    """Return a queue.

    Raises:
        NotFound: the queue does not exist.
    """
    config = await _decoded(store, keys.config_key(name))
    options = await _decoded(store, keys.options_key(name))
    if config is None and options is None:
        raise NotFound(f"there is no queue {name!r} in {store.location}", queue=name)
    details = QueueDetails(name, config or {}, options or {})
    now = store.clock.now_ms()
    for kind, decode in BUCKETS.items():
        numbers = details.buckets.setdefault(kind.value, [])
        async for rows in store.scan_batches(*keys.prefix_range(QUEUE_PREFIXES[kind](name))):
            for key, value in rows:
                numbers.append(keys.parse(key).bucket or 0)
                states = Counter(state_at(state, entry, now) for state, entry in entries_of(kind, decode(key, value)))
                details.counts = dict(states + Counter(details.counts))
    async for rows in store.scan_batches(*keys.kind_range(RecordKind.BINDING)):
        for key, value in rows:
            parsed = keys.parse(key)
            if parsed.queue == name:
                arguments = readable(stored.decode_any(key, value))
                bound = {"exchange": parsed.name, "routing_key": parsed.routing_key, "arguments": arguments}
                details.bindings.append(bound)
    return details
