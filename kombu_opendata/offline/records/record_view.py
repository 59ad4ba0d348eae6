"""Records as plain structures, which JSON can express: by key, kind, queue or prefix."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

import msgspec

from ...errors import CorruptRecord, NotFound, RequestError
from ...storage import records as stored
from ...storage.records import keys, settled
from ...storage.records.active import IN_FLIGHT_FIELDS, AvailableMessage
from ...storage.records.keys import RecordKind
from ..findings import OnProgress, Progress
from .message_facts import AVAILABLE, BUCKETS, IN_FLIGHT, entries_of
from .offline_store import OfflineStore

DEFAULT_LIMIT = 100
PREVIEW_BYTES = 256


@dataclass(frozen=True, slots=True)
class Record:
    """Record as a plain structure.

    Attributes:
        key: the key, in hexadecimal.
        kind: the kind; ``unknown`` if its key is of no known kind.
        of: the fields of the key: queue, bucket, message id, …
        value: the decoded value, as texts, numbers, lists and maps; None if it does not decode.
        size: the size of the value in bytes.
        problem: the reason why it does not decode; empty if it does.
    """

    key: str
    kind: str
    of: dict[str, Any]
    value: Any
    size: int
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


async def record(store: OfflineStore, key: bytes) -> Record:
    """Return the record with this key.

    Raises:
        NotFound: the record does not exist.
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
    """Yield records in the order of their keys.

    Args:
        kind: only records of this kind: a :class:`RecordKind` or its name (``active``, ``dead letter``, …).
        queue: only records of this queue; ``kind`` must then be a kind that queues have, or None.
        start: the first key; to continue after a record, append a 0 byte to its key.

    Raises:
        RequestError: the kind is unknown or queues don't have it, or the limit is below 1.
    """
    if limit < 1:
        raise RequestError(f"the limit must be at least 1, not {limit}", limit=limit)
    remaining = limit
    for low, high in _ranges(kind, queue, prefix):
        async for rows in store.scan_batches(max(low, start), high, batch=min(remaining, 200)):
            for key, value in rows[:remaining]:
                yield as_record(key, value)
            remaining -= min(remaining, len(rows))
            if not remaining:
                return


def _ranges(kind: RecordKind | str | None, queue: str | None, prefix: bytes) -> list[tuple[bytes, bytes | None]]:
    if isinstance(kind, str):
        names = {k.value: k for k in RecordKind} | {k.name.lower(): k for k in RecordKind}
        if kind not in names:
            text = f"there is no kind of record {kind!r}: use {', '.join(sorted(k.value for k in RecordKind))}"
            raise RequestError(text, kind=kind)
        kind = names[kind]
    if queue is not None:
        kinds = list(QUEUE_PREFIXES) if kind is None else [kind]
        if not QUEUE_PREFIXES.keys() >= set(kinds):
            text = f"records of the kind {kinds[0].value!r} do not belong to a queue: leave out the queue"
            raise RequestError(text, kind=kinds[0].value, queue=queue)
        return [_within(keys.prefix_range(QUEUE_PREFIXES[each](queue)), prefix) for each in kinds]
    if kind is not None:
        return [_within(keys.kind_range(kind), prefix)]
    return [keys.prefix_range(prefix) if prefix else (b"", None)]


QUEUE_PREFIXES = {
    RecordKind.ACTIVE: keys.active_key,
    RecordKind.DONE: keys.done_key,
    RecordKind.FAILED: keys.failed_key,
    RecordKind.ARCHIVED_FAILED: keys.archived_failed_key,
    RecordKind.CONFIG: keys.config_key,
    RecordKind.OPTIONS: keys.options_key,
    RecordKind.QUEUE_COUNTS: keys.queue_counts_key,
    RecordKind.OVERRIDES: keys.overrides_key,
    RecordKind.FLOW: keys.flow_key,
    RecordKind.PARTITION: keys.partition_key,
}


def _within(outer: tuple[bytes, bytes], prefix: bytes) -> tuple[bytes, bytes | None]:
    if not prefix:
        return outer
    low, high = keys.prefix_range(prefix)
    return max(outer[0], low), min(outer[1], high)


def as_record(key: bytes, value: bytes) -> Record:
    """Return a record as a structure, decoded as far as possible."""
    kind = kind_of(key)
    name = kind.value if kind is not None else "unknown"
    try:
        parsed = keys.parse(key)
        decoded: Any = stored.decode_any(key, value)
    except CorruptRecord as exc:
        return Record(key.hex(), name, {}, None, len(value), exc.text)
    if parsed.kind in BUCKETS:
        decoded = _bucket(parsed.kind, decoded)
    elif parsed.kind is RecordKind.HISTORY_HEADERS:
        decoded = [{"message_id": id, "header_pairs": pairs} for id, pairs in decoded.items()]
    elif parsed.kind in _FIELD_NAMES:
        decoded = dict(zip(_FIELD_NAMES[parsed.kind], decoded, strict=True))
    of = {field: readable(part) for field, part in parsed._asdict().items() if part is not None and field != "kind"}
    return Record(key.hex(), name, of, readable(decoded), len(value))


#: kinds that decode to a plain tuple
_FIELD_NAMES = {RecordKind.SEQ_BLOCK: ("base", "size")}


def _bucket(kind: RecordKind, decoded: Any) -> Any:
    if kind is RecordKind.ACTIVE:
        available, in_flight = decoded
        return {
            "available": [as_entry(AVAILABLE, entry) for entry in available],
            "in_flight": [as_entry(IN_FLIGHT, entry) for entry in in_flight],
        }
    return [as_entry(state, entry) for state, entry in entries_of(kind, decoded)]


def kind_of(key: bytes) -> RecordKind | None:
    """Return the kind of record of a key by its beginning, even if the rest is invalid."""
    for kind in RecordKind:
        if kind is RecordKind.SEQ_BLOCK:
            continue
        start, end = keys.kind_range(kind)
        if start <= key < end or (kind is RecordKind.METADATA and key.startswith(kind.prefix)):
            return kind
    return RecordKind.SEQ_BLOCK if key == keys.SEQ_BLOCK_KEY else None


def between(kinds: Iterable[RecordKind]) -> list[tuple[bytes, bytes | None]]:
    """Return the ranges of all keys except those of these kinds."""
    ranges: list[tuple[bytes, bytes | None]] = []
    position = b""
    for start, end in sorted(keys.kind_range(kind) for kind in kinds):
        if start > position:
            ranges.append((position, start))
        position = end
    return [*ranges, (position, None)]


async def scan_except(
    store: OfflineStore, kinds: Iterable[RecordKind], batch: int, progress: OnProgress
) -> AsyncIterator[tuple[bytes, bytes]]:
    """Yield key and value of all records except those of these kinds."""
    count = 0
    for start, end in between(kinds):
        async for rows in store.scan_batches(start, end, batch=batch):
            for row in rows:
                yield row
            count += len(rows)
            progress(Progress("records", count))


def as_entry(state: str, entry: tuple[int, ...]) -> dict[str, Any]:
    if state == AVAILABLE:
        return AvailableMessage(*entry)._asdict()
    if state == IN_FLIGHT:
        return dict(zip(IN_FLIGHT_FIELDS, entry, strict=True))
    return settled.SettledEntry(*entry)._asdict()


# ---- decoded values as texts, numbers, lists and maps
def readable(value: Any, limit: int = PREVIEW_BYTES) -> Any:
    """Return a value for JSON; long bytes become a preview."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return readable(value._asdict(), limit)
    if isinstance(value, msgspec.Struct):
        return readable(msgspec.structs.asdict(value), limit)
    if is_dataclass(value) and not isinstance(value, type):
        return readable(asdict(value), limit)
    if isinstance(value, Mapping):
        return {_name(name): readable(part, limit) for name, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [readable(part, limit) for part in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return preview(bytes(value), limit)
    if value is None or isinstance(value, (bool, int, float, str)):
        return _clean(value)
    return str(value)


def preview(data: bytes, limit: int = PREVIEW_BYTES) -> Any:
    """Return bytes as text if they are text, else in hexadecimal; long values are cut, and their size is added."""
    beginning = data[:limit]
    try:
        text = beginning.decode()
        kind = "text"
    except UnicodeDecodeError as exc:
        # an incomplete last character, from the cut, does not make the text hexadecimal
        whole = len(data) > limit and exc.start > len(beginning) - 4
        kind, text = ("text", beginning[: exc.start].decode()) if whole else ("hex", beginning.hex())
    if kind == "text" and len(data) <= limit and text.isprintable():
        return text
    return {"bytes": len(data), kind: text}


def _name(name: Any) -> str:
    return str(_clean(name)) if not isinstance(name, bytes) else name.decode("utf-8", "backslashreplace")


def _clean(value: Any) -> Any:
    """Replace surrogates, which represent bytes that are not UTF-8, and which terminals and JSON refuse."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
