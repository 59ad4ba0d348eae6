"""A checkpoint: one atomic SlateDB batch that brings the store to the state in memory.

:func:`snapshot` builds the batch from the state in one step of the event loop. :func:`resolve` adds the few records
that depend on their old values in the store: attempts, the records of deleted queues, and the messages that no queue
needs any more. The caller writes and flushes the batch, which also contains the journal's position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Set
from typing import NamedTuple, TypeVar

from ...errors import CorruptRecord
from ..clock import TimeSlice
from ..messages.payload_reader import locate
from ..records import (
    active,
    dead_letter,
    definitions,
    keys,
    partition,
    payload,
    routing_cursor,
    session_records,
    settled,
    store_records,
)
from ..records.definitions import NO_OVERRIDES, FlowRecord, QueueConfig
from ..records.partition import PartitionRecord
from ..records.payload import Chunks, NewMessage
from ..records.payload_places import EnvelopePlace, Place, is_segment
from ..records.routes_block import KEPT, KEPT_IN_CHUNKS
from ..records.session_records import SessionLeases
from ..slatedb.ffi import WriteBatch
from ..slatedb.store_reads import Reads
from ..state.partitions import Partitions
from ..state.queue_buckets import QueueEntry
from ..state.settled_list import LISTS, ListName, bucket_key
from ..state.store_state import DeletedQueue, Dirty, Queue, StoreState
from .route_counts import RouteCounts, portions

T = TypeVar("T")

#: keys of the records that a queue has at most once
_KEYS_OF_QUEUES = keys.config_key, keys.options_key, keys.queue_counts_key, keys.overrides_key, keys.flow_key


class Fresh(NamedTuple):
    """The payloads in a checkpoint's batch, by message id: envelopes, and the records of those that are elsewhere."""

    envelopes: dict[int, bytes]
    staged: dict[int, NewMessage]


def snapshot(state: StoreState, batch: WriteBatch, position: int | None, now: int) -> Dirty:
    """Add all changed records to ``batch``; the returned Dirty lists the changes that need the store's old values."""
    dirty, state.dirty = state.dirty, Dirty()
    redeclared = dirty.deleted_queues.keys() & state.queues.keys()
    dirty.redeclared = {name: _records_of(state.queues[name], dirty) for name in redeclared}
    for name in state.changed & state.queues.keys():  # there may be thousands, of which few have changed
        _put_queue(state.queues[name], batch)
        dirty.touched.append(state.queues[name])
    state.changed.clear()
    for name in dirty.queues & state.queues.keys():
        _put_options(state, state.queues[name], batch)
    for name in dirty.overrides & state.queues.keys():
        values = state.queues[name].overrides
        value = None if values == NO_OVERRIDES else definitions.encode_overrides(values)
        batch.put_or_delete(keys.overrides_key(name), value)
    for name in dirty.flow & state.queues.keys():
        limits = state.queues[name].flow
        record = None if limits is None or limits.is_idle(now) else FlowRecord(*limits.state)
        _put_or_delete(batch, keys.flow_key(name), record, definitions.encode_flow)
    _put_topology(state, dirty, batch)
    _put_sessions(state, dirty, batch, now)
    state.segments.snapshot()
    state.results.snapshot(batch)
    state.idempotency.snapshot(batch)
    state.staged.snapshot(batch)
    state.running.snapshot(batch)
    state.handled.snapshot(batch)
    for queue_name, id in dirty.dead_letters:
        letter = state.dead_letters.get((queue_name, id))
        _put_or_delete(batch, keys.dead_letter_key(id, queue_name), letter, dead_letter.encode)
    for name in dirty.cursors:
        _put_or_delete(batch, keys.cursor_key(name), state.cursors.get(name), routing_cursor.encode)
    if dirty.block is not None:
        batch.put(keys.SEQ_BLOCK_KEY, store_records.encode_seq_block(*dirty.block))
    if position is not None:
        batch.put(keys.JOURNAL_POSITION_KEY, store_records.encode_journal_position(position))
    if state.newest_ms and (len(batch) or dirty):
        batch.put(keys.NEWEST_TIME_KEY, store_records.encode_newest_time(state.newest_ms))
    return dirty


def _put_or_delete(batch: WriteBatch, key: bytes, record: T | None, encode: Callable[[T], bytes]) -> None:
    batch.put_or_delete(key, None if record is None else encode(record))


def _put_queue(queue: Queue, batch: WriteBatch) -> None:
    messages = queue.messages
    _put_counts(queue, batch)  # also of messages that came and went since the last checkpoint, with their bucket
    key_of, buckets = keys.buckets_of(queue.name), messages.buckets
    # together, as there may be thousands of buckets of different partitions
    batch.put_all([(key_of(number), buckets[number].record()) for number in messages.dirty])
    for number in messages.dirty:
        buckets[number].stored = True
    for number in messages.dropped:
        batch.delete(key_of(number))
    messages.dirty.clear()
    messages.dropped.clear()
    if messages.partitions is not None:
        _put_partitions(queue.name, messages.partitions, batch)
        messages.drop_partitions()
    for which in LISTS:
        _put_log(queue, which, batch)


def _put_partitions(queue: str, partitions: Partitions, batch: WriteBatch) -> None:
    for number in partitions.changed:
        each = partitions.get(number)
        record = None
        if each is not None:
            record = PartitionRecord(each.by, each.key, *each.state)
        _put_or_delete(batch, keys.partition_key(queue, number), record, partition.encode)
    partitions.changed.clear()


def _put_counts(queue: Queue, batch: WriteBatch) -> None:
    counts = queue.counts
    values = counts.changed()
    if values is not None:
        record = definitions.StoredCounts(counts.created_at_ms, counts.since_ms, values)
        batch.put(keys.queue_counts_key(queue.name), definitions.encode_counts(record))


def _put_log(queue: Queue, which: ListName, batch: WriteBatch) -> None:
    log = queue.settled_list(which)
    for number, rows in log.dirty.items():
        stays = rows or number == log.tail or (number == 0 and not log.optional)
        batch.put_or_delete(bucket_key(queue.name, which, number), settled.join(rows) if stays else None)
    log.dirty.clear()


def _put_options(state: StoreState, queue: Queue, batch: WriteBatch) -> None:
    name, declared = queue.name, queue.declared
    filter_text = state.topology.filter_of(name)
    value = definitions.encode_config(QueueConfig(filter_text, declared.max_attempts, declared.done_retention_seconds))
    batch.put(keys.config_key(name), value)
    record = definitions.QueueOptionsRecord(
        declared.failed_retention_seconds,
        declared.lease_seconds,
        queue.done.first,
        queue.failed.first,
        declared.arguments,
    )
    batch.put(keys.options_key(name), definitions.encode_options(record))


def _put_topology(state: StoreState, dirty: Dirty, batch: WriteBatch) -> None:
    exchanges = state.topology.exchanges
    for name in dirty.exchanges:
        exchange = exchanges.get(name)
        record = None
        if exchange is not None:
            record = definitions.ExchangeRecord(
                exchange.type, exchange.durable, exchange.auto_delete, exchange.arguments
            )
        _put_or_delete(batch, keys.exchange_key(name), record, definitions.encode_exchange)
    for queue, name, routing_key, identity in dirty.bindings:
        exchange = exchanges.get(name)
        key = keys.binding_key(name, queue, routing_key, identity)
        arguments = state.topology.binding(queue, name, routing_key, identity)
        is_durable = exchange is not None and exchange.durable
        _put_or_delete(batch, key, arguments if is_durable else None, definitions.encode_binding)


def _put_sessions(state: StoreState, dirty: Dirty, batch: WriteBatch, now: int) -> None:
    for session in dirty.producers:
        _put_or_delete(batch, keys.producer_key(session), state.producers.get(session), session_records.encode_producer)
    for session in dirty.removals:
        _put_or_delete(batch, keys.removal_key(session), state.removals.get(session), session_records.encode_removal)
    for session in dirty.sessions:
        groups: dict[str, list[QueueEntry]] = {}
        for entry in state.leases.get(session, {}).values():
            groups.setdefault(entry.queue, []).append(entry)
        name, owner = state.session_names.get(session, ""), state.session_owners.get(session, "")
        leases = _leases(name, owner, now, groups) if groups or name or owner else None
        _put_or_delete(batch, keys.session_key(session), leases, session_records.encode_leases)


def _leases(name: str, owner: str, now: int, groups: Mapping[str, list[QueueEntry]]) -> SessionLeases:
    ids_by_queue = {queue: [entry.id for entry in entries] for queue, entries in groups.items()}
    deadlines = {queue: [entry.deadline for entry in entries] for queue, entries in groups.items()}
    deadlines = {queue: values for queue, values in deadlines.items() if any(values)}
    return SessionLeases(name, now, ids_by_queue, deadlines, owner)


def _records_of(queue: Queue, dirty: Dirty) -> frozenset[bytes]:
    """Return the keys of the records that the checkpoint writes for a queue."""
    name = queue.name
    queue_keys = {keys.config_key(name), keys.options_key(name), keys.queue_counts_key(name)}
    if queue.overrides != NO_OVERRIDES:
        queue_keys.add(keys.overrides_key(name))
    if name in dirty.flow:
        queue_keys.add(keys.flow_key(name))
    queue_keys.update(keys.active_key(name, number) for number in queue.messages.dirty)
    if queue.messages.partitions is not None:
        queue_keys.update(keys.partition_key(name, number) for number in queue.messages.partitions.changed)
    for which in LISTS:
        queue_keys.update(bucket_key(name, which, number) for number in queue.settled_list(which).dirty)
    return frozenset(queue_keys)


async def resolve(
    dirty: Dirty,
    batch: WriteBatch,
    store: Reads,
    fresh: Fresh,
    state: StoreState,
) -> set[int]:
    """Add the records that depend on the store's old values: attempts, deleted queues, counts of queues, garbage.

    Returns the ids of the deleted messages.
    """
    counts = RouteCounts(store, state.sizes)
    await counts.load(sorted(dirty.whole_attempts))
    for id, consumers in dirty.attempts.items():
        key = keys.attempts_key(id)
        whole = id in dirty.whole_attempts and id not in dirty.joined
        whole = whole and not counts.get(id)  # else another queue may have written the record
        old = None if whole else await store.get(key)
        attempts = [*(active.decode_attempts(key, old) if old else ()), *consumers][-65_535:]
        batch.put(key, active.encode_attempts(attempts))
    garbage = list(dirty.garbage)
    for name, incarnations in dirty.deleted_queues.items():
        # A queue may have been declared and deleted repeatedly since the last checkpoint: only the first is stored.
        new_keys = dirty.redeclared.get(name, frozenset())
        stored_ids = await _delete_queue_records(name, incarnations[0], new_keys, batch, store)
        garbage += (incarnations[0].ids | stored_ids) - incarnations[0].dead_letters
        garbage += [id for deleted in incarnations[1:] for id in deleted.ids - deleted.dead_letters]
    deleted_ids = await _count(garbage, dirty, batch, store, fresh, counts, state)
    if dirty.log:
        state.log.put_into(batch)
    state.segments.put_into(batch)
    state.staged.collected(deleted_ids, batch)
    return deleted_ids


async def _delete_queue_records(
    name: str, deleted: DeletedQueue, new_keys: Set[bytes], batch: WriteBatch, store: Reads
) -> set[int]:
    """Delete a queue's records except ``new_keys``, which were just put; return the ids of its settled messages."""
    ids: set[int] = set()
    queue_keys = [key(name) for key in _KEYS_OF_QUEUES]
    for prefix, loaded_buckets in (
        (keys.active_key(name), None),
        (keys.partition_key(name), None),
        (keys.done_key(name), deleted.buckets["done"]),
        (keys.failed_key(name), deleted.buckets["failed"]),
        (keys.archived_failed_key(name), deleted.buckets["archived_failed"]),
    ):
        async for rows in store.scan_batches(*keys.prefix_range(prefix)):
            for key, value in rows:
                queue_keys.append(key)
                if loaded_buckets is not None and keys.parse(key).bucket not in loaded_buckets:
                    ids.update(row.message_id for row in settled.decode(key, value))
    for key in queue_keys:
        if key not in new_keys:
            batch.delete(key)
    return ids


async def _count(
    garbage: list[int],
    dirty: Dirty,
    batch: WriteBatch,
    store: Reads,
    fresh: Fresh,
    counts: RouteCounts,
    state: StoreState,
) -> set[int]:
    """Update the counts of queues that need a message, and delete the messages that no queue needs.

    Payload, metadata and attempts are deleted together. A message that is in several queues, or in chunks or a segment,
    or that was moved, has an entry in a routes block, which counts the remaining queues. A message that no queue needs,
    but that the log still keeps, is not deleted: its entry marks it as kept. Returns the ids of the deleted messages.
    """
    new, changes, log = dirty.routes, _changes(garbage, dirty), state.log
    deleted_ids = set()
    kept_count = 0
    piece = TimeSlice()
    for ids in portions(sorted(changes), counts.max_blocks):
        await counts.load(ids)
        async for id in piece.over(ids):
            stored_count = new[id] if id in new else counts.get(id)
            was_log_only = stored_count >= KEPT_IN_CHUNKS
            kept_count -= was_log_only
            count = changes[id] + (0 if was_log_only else stored_count or 1)
            if count > 0:
                counts.set(id, count)
                continue
            if id >= log.kept_from and id not in dirty.outdated:
                counts.keep(id, in_chunks=stored_count not in (0, KEPT))
                kept_count += 1
                continue
            deleted_ids.add(id)
            if stored_count:
                counts.set(id, 0)
            chunks = 0
            if stored_count not in (0, KEPT):
                place = await _place(id, store, fresh)
                if isinstance(place, EnvelopePlace):
                    if is_segment(place.path):
                        state.segments.collect(place.path, place.stored_bytes)
                elif isinstance(place, Chunks):
                    chunks = place.records
            _delete_message(id, chunks, batch)
        await counts.put_into(batch)
    dirty.log |= log.count(kept_count)
    return deleted_ids


def _changes(garbage: list[int], dirty: Dirty) -> dict[int, int]:
    """Return the change in the number of queues of each message."""
    changes = dict.fromkeys(dirty.routes, 0) | dirty.joined
    changes.update(dict.fromkeys(dirty.outdated - changes.keys(), 0))
    for id, count in Counter(garbage).items():
        changes[id] = changes.get(id, 0) - count
    return changes


def _delete_message(id: int, chunks: int, batch: WriteBatch) -> None:
    for key in (keys.payload_key(id), keys.metadata_key(id), keys.attempts_key(id)):
        batch.delete(key)
    for chunk in range(chunks):
        batch.delete(keys.chunk_key(id, chunk))


async def _place(id: int, store: Reads, fresh: Fresh) -> Place | None:
    """Return the place of a message's payload; None if it has no record that can be read."""
    envelope, staged, key = fresh.envelopes.get(id), fresh.staged.get(id), keys.payload_key(id)
    if envelope is not None and staged is None:
        return Chunks(payload.chunk_count(envelope), len(envelope))
    value = await store.get(key) if staged is None else staged.uri
    try:
        return locate(id, value)
    except CorruptRecord:
        return None
