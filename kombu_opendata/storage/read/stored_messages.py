"""Metadata of stored messages, read by id and by time, and its conversion to rows of a queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...selectors import Selector
from ..clock import TimeSlice
from ..messages.payloads import Payloads, dense_runs, read_sizes
from ..records import keys, metadata
from ..records.metadata import Metadata
from ..slatedb.store_reads import Reads
from ..slatedb.store_writer import SlateStore
from ..state.queue_buckets import QueueRow, stored_deadline
from ..state.store_state import Queue

#: the header with a message's priority, as in Kombu: higher first
PRIORITY = "priority"
_PRIORITIES = {str(number): 255 - number for number in range(256)}
_READ_AHEAD_BYTES = 512 << 10
#: the widest gap between the ids of one scan
_MAX_GAP = 32
#: the usual size of a record
_USUAL_BYTES = 512
#: rows of one call of a scan
_SCAN_ROWS = 512
#: concurrent point reads
_AT_ONCE = 32


def id_of(metadata_key: bytes) -> int:
    """Return the message id in the key of a metadata record."""
    return int.from_bytes(metadata_key[-8:], "big")


async def first_received_from(store: SlateStore, at_ms: int, low: int, high: int) -> int:
    """Return an id in ``low`` … ``high`` before which every message was received before ``at_ms``.

    Ids ascend with the times of receipt, so a binary search takes as many reads as ``high - low`` has bits.
    """
    while low < high:
        middle = (low + high) // 2
        rows = await store.scan(keys.metadata_key(middle), keys.metadata_key(high), limit=1, read_ahead_bytes=4096)
        if rows and metadata.decode(*rows[0]).received_at_ms < at_ms:
            low = id_of(rows[0][0]) + 1
        else:
            high = middle
    return low


async def read_metadata(store: Reads, payloads: Payloads, ids: Iterable[int]) -> dict[int, Metadata]:
    """Return the metadata by message id, without messages that were collected."""
    records = await read_metadata_records(store, payloads, ids)
    return {id: metadata.decode(keys.metadata_key(id), value) for id, value in records.items()}


async def read_metadata_records(
    store: Reads, payloads: Payloads, ids: Iterable[int], *, in_thread: bool = True
) -> dict[int, bytes]:
    """Return the records of :func:`read_metadata`, not decoded.

    Without ``in_thread``, each scan of up to 512 rows blocks the event loop for about a millisecond. That is sooner
    done: beside a busy loop, each call in a thread waits some 20 ms for the interpreter's lock.
    """
    wanted_ids = set(ids)
    records: dict[int, bytes] = {}
    for id in wanted_ids:
        value = payloads.unstored_metadata(id)
        if value is not None:
            records[id] = value
    missing = sorted(wanted_ids - records.keys())
    scanned_ids: set[int] = set()
    for run in dense_runs(missing, _MAX_GAP):
        first, last = keys.metadata_key(run[0]), keys.metadata_key(run[-1]) + b"\0"
        ahead = min(_READ_AHEAD_BYTES, _USUAL_BYTES * (run[-1] - run[0] + 1))
        batches = store.scan_batches(
            first, last, batch=_SCAN_ROWS, read_ahead_bytes=ahead, in_thread=in_thread and len(run) > _AT_ONCE
        )
        async for rows in batches:
            records.update((id, value) for key, value in rows if (id := id_of(key)) in wanted_ids)
        scanned_ids.update(run)
    single = [id for id in missing if id not in scanned_ids]
    for start in range(0, len(single), _AT_ONCE):
        batch = single[start : start + _AT_ONCE]
        values = await store.get_many([keys.metadata_key(id) for id in batch])
        records.update((id, value) for id, value in zip(batch, values, strict=True) if value is not None)
    return records


async def matching(selector: Selector, messages: Iterable[Metadata]) -> set[int]:
    """Return the ids of the messages whose headers match. Other tasks run after each slice of a millisecond."""
    piece = TimeSlice()
    ids = set()
    for message in messages:
        if selector.matches(message.headers):
            ids.add(message.message_id)
        await piece.pause()
    return ids


# ---------------------------------------------------------------------- rows of a queue
def after_lease(row: QueueRow, at: int) -> None:
    """Make the token of the next lease differ from those before ``at``: the message was leased in this queue before."""
    row.visible_at_ms = max(row.visible_at_ms, at + 1)


def priority_of(headers: Mapping[str, str]) -> int:
    """Return the stored priority (lower first) of a message with these headers; an invalid priority counts as 0."""
    return _PRIORITIES.get(headers.get(PRIORITY, ""), 255)


def row_of(message: Metadata, priority: int, queue: Queue, at: int, visible_at: int | None = None) -> QueueRow | None:
    """Return the row of a message that is added to the queue at ``at``; None if its deadline is over.

    Bucket and size are 0. ``visible_at``: the time at which it becomes visible; None means as published.
    """
    deadline = 0
    if message.retention_seconds:
        deadline = stored_deadline(message.received_at_ms, message.retention_seconds, message.headers)
        if deadline <= at:
            return None
    if visible_at is None:
        visible_at = message.visible_at_ms
    if visible_at < at:
        visible_at = at
    if queue.limits.message_ttl_ms >= 0:
        deadline = queue.limits.deadline(deadline, visible_at, at)
    return QueueRow(message.message_id, 0, priority, visible_at, deadline, 0)


def place(queue: Queue, rows: list[QueueRow]) -> None:
    """Choose the bucket of each row."""
    messages = queue.messages
    tail = messages.tail
    entries = messages.tail_used
    limit = messages.bucket_entries
    for row in rows:
        if entries >= limit:
            tail, entries = tail + 1, 0
        row.bucket = tail
        entries += 1


async def measure(store: SlateStore, queue: Queue, rows: list[QueueRow]) -> None:
    """Set the sizes of the messages, if the queue counts bytes."""
    if queue.limits.counts_bytes:
        for row, size in zip(rows, await read_sizes(store, [row.id for row in rows]), strict=True):
            row.size = size
