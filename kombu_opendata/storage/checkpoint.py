"""A checkpoint: one atomic SlateDB batch that brings the store to the state in memory.

The batch is made in one go from the state, then the few records that need the old value are added (attempts, payloads
of messages that nobody needs any more), then it is written and flushed. The journal's position is part of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Set

from . import payloads
from .ffi import Batch
from .log_state import LogState
from .queue_buckets import Entry
from .records import (
    active,
    attempts,
    config,
    cursor,
    dead_letter,
    journal_position,
    keys,
    leases,
    newest_time,
    options,
    payload,
    producer,
    queue_counts,
    removal,
    seq_block,
    settled,
    topology,
)  # fmt: skip
from .records.config import QueueConfig
from .records.leases import Leases
from .records.routes_block import KEPT, KEPT_IN_CHUNKS
from .route_counts import RouteCounts, portions
from .settled_log import LISTS, Which, bucket_key
from .slate_reads import Reads
from .state import DeletedQueue, Dirty, Queue, StoreState

#: messages whose counts are brought up to date in one turn of the event loop
_COUNTS_PER_TURN = 250


def snapshot(state: StoreState, batch: Batch, position: int | None, now: int) -> Dirty:
    """Add all that changed to ``batch``; what needs the store's old values is left in the returned Dirty."""
    dirty, state.dirty = state.dirty, Dirty()
    again = dirty.deleted_queues.keys() & state.queues.keys()
    dirty.redeclared = {name: _records_of(state.queues[name]) for name in again}
    for queue in state.queues.values():
        _put_queue(queue, batch)
    for name in dirty.queues & state.queues.keys():
        _put_options(state, state.queues[name], batch)
    _put_topology(state, dirty, batch)
    _put_sessions(state, dirty, batch, now)
    state.results.snapshot(batch)
    state.idempotency.snapshot(batch)
    state.staged.snapshot(batch)
    for place in dirty.dead_letters:
        _put_dead_letter(state, *place, batch)
    for name in dirty.cursors:
        _put_cursor(state, name, batch)
    if dirty.block is not None:
        batch.put(keys.SEQ_BLOCK_KEY, seq_block.encode(*dirty.block))
    if position is not None:
        batch.put(keys.JOURNAL_POSITION_KEY, journal_position.encode(position))
    if state.newest_ms and (len(batch) or dirty):
        batch.put(keys.NEWEST_TIME_KEY, newest_time.encode(state.newest_ms))
    return dirty


def _put_queue(queue: Queue, batch: Batch) -> None:
    messages = queue.messages
    if messages.dirty or messages.dropped:  # whatever is counted changes a bucket
        _put_counts(queue, batch)
    for number in messages.dirty:
        bucket = messages.buckets[number]
        batch.put(keys.active_key(queue.name, number), active.encode(*bucket.rows()))
        bucket.stored = True
    for number in messages.dropped:
        batch.delete(keys.active_key(queue.name, number))
    messages.dirty.clear()
    messages.dropped.clear()
    for which in LISTS:
        _put_log(queue, which, batch)


def _put_counts(queue: Queue, batch: Batch) -> None:
    counts = queue.counts
    values = counts.changed()
    if values is not None:
        stored = queue_counts.StoredCounts(counts.created_at_ms, counts.since_ms, values)
        batch.put(keys.queue_counts_key(queue.name), queue_counts.encode(stored))


def _put_log(queue: Queue, which: Which, batch: Batch) -> None:
    log = queue.settled_list(which)
    for number, rows in log.dirty.items():
        key = bucket_key(queue.name, which, number)
        if rows or number == log.tail or (number == 0 and not log.optional):
            batch.put(key, settled.join(rows))
        else:
            batch.delete(key)
    log.dirty.clear()


def _put_options(state: StoreState, queue: Queue, batch: Batch) -> None:
    name, chosen = queue.name, queue.options
    filter_text = state.topology.filter_of(name)
    value = config.encode(QueueConfig(filter_text, chosen.max_attempts, chosen.done_retention_seconds))
    batch.put(keys.config_key(name), value)
    stored = options.QueueOptions(
        chosen.failed_retention_seconds,
        chosen.lease_seconds,
        queue.done.first,
        queue.failed.first,
        chosen.arguments,
    )
    batch.put(keys.options_key(name), options.encode(stored))


def _put_topology(state: StoreState, dirty: Dirty, batch: Batch) -> None:
    exchanges = state.topology.exchanges
    for name in dirty.exchanges:
        exchange = exchanges.get(name)
        if exchange is None:
            batch.delete(keys.exchange_key(name))
        else:
            stored = topology.Exchange(exchange.type, exchange.durable, exchange.auto_delete, exchange.arguments)
            batch.put(keys.exchange_key(name), topology.encode_exchange(stored))
    for queue, name, routing_key, identity in dirty.bindings:
        exchange = exchanges.get(name)
        key = keys.binding_key(name, queue, routing_key, identity)
        arguments = state.topology.binding(queue, name, routing_key, identity)
        if exchange is not None and exchange.durable and arguments is not None:
            batch.put(key, topology.encode_binding(arguments))
        else:
            batch.delete(key)


def _put_dead_letter(state: StoreState, queue: str, id: int, batch: Batch) -> None:
    letter = state.dead_letters.get((queue, id))
    key = keys.dead_letter_key(id, queue)
    if letter is None:
        batch.delete(key)
    else:
        batch.put(key, dead_letter.encode(letter))


def _put_cursor(state: StoreState, queue: str, batch: Batch) -> None:
    found = state.cursors.get(queue)
    if found is None:
        batch.delete(keys.cursor_key(queue))
    else:
        batch.put(keys.cursor_key(queue), cursor.encode(found))


def _put_sessions(state: StoreState, dirty: Dirty, batch: Batch, now: int) -> None:
    for session in dirty.producers:
        last = state.producers.get(session)
        if last is None:
            batch.delete(keys.producer_key(session))
        else:
            batch.put(keys.producer_key(session), producer.encode(last))
    for session in dirty.removals:
        found = state.removals.get(session)
        if found is None:
            batch.delete(keys.removal_key(session))
        else:
            batch.put(keys.removal_key(session), removal.encode(found))
    for session in dirty.sessions:
        groups: dict[str, list[Entry]] = {}
        for entry in state.leases.get(session, {}).values():
            groups.setdefault(entry.queue, []).append(entry)
        name = state.session_names.get(session, "")
        if groups or name:
            batch.put(keys.session_key(session), leases.encode(_leases(name, now, groups)))
        else:
            batch.delete(keys.session_key(session))


def _leases(name: str, now: int, groups: Mapping[str, list[Entry]]) -> Leases:
    held = {queue: [entry.id for entry in entries] for queue, entries in groups.items()}
    deadlines = {
        queue: [entry.deadline for entry in entries]
        for queue, entries in groups.items()
        if any(entry.deadline for entry in entries)
    }
    return Leases(name, now, held, deadlines)


async def resolve(
    dirty: Dirty,
    batch: Batch,
    store: Reads,
    fresh: Mapping[int, bytes],
    state: StoreState,
) -> set[int]:
    """Add what depends on the store's old values: attempts records, deleted queues, counts of queues, garbage.

    ``fresh`` are the payloads in the batch. Returns the messages that are deleted.
    """
    counts = RouteCounts(store)
    await counts.load(sorted(dirty.whole_attempts))
    for id, consumers in dirty.attempts.items():
        key = keys.attempts_key(id)
        whole = id in dirty.whole_attempts and id not in dirty.joined
        whole = whole and not counts.get(id)  # else another queue may have written the record
        old = None if whole else await store.get(key)
        batch.put(key, attempts.encode([*(attempts.decode(key, old) if old else ()), *consumers][-65_535:]))
    garbage = list(dirty.garbage)
    for name, incarnations in dirty.deleted_queues.items():
        # Only the first is in the store: the others came and went since the last checkpoint.
        kept = dirty.redeclared.get(name, frozenset())
        stored = await _delete_queue_records(name, incarnations[0], kept, batch, store)
        garbage += (incarnations[0].ids | stored) - incarnations[0].dead_letters
        garbage += [id for deleted in incarnations[1:] for id in deleted.ids - deleted.dead_letters]
    gone = await _count(garbage, dirty, batch, store, fresh, counts, state.log)
    if dirty.log:
        state.log.put_into(batch)
    state.staged.collected(gone, batch)
    return gone


async def _delete_queue_records(
    name: str, deleted: DeletedQueue, kept: Set[bytes], batch: Batch, store: Reads
) -> set[int]:
    """Delete a queue's records but for those that were just put (``kept``); returns what was settled."""
    ids: set[int] = set()
    gone = [keys.config_key(name), keys.options_key(name), keys.queue_counts_key(name)]
    for prefix, known in (
        (keys.active_prefix(name), None),
        (keys.done_prefix(name), deleted.buckets["done"]),
        (keys.failed_prefix(name), deleted.buckets["failed"]),
        (keys.archived_failed_prefix(name), deleted.buckets["archived_failed"]),
    ):
        async for rows in store.scan_batches(*keys.prefix_range(prefix)):
            for key, value in rows:
                gone.append(key)
                if known is not None and keys.parse(key).bucket not in known:
                    ids.update(id for id, _at, _attempts in settled.decode(key, value))
    for key in gone:
        if key not in kept:
            batch.delete(key)
    return ids


def _records_of(queue: Queue) -> frozenset[bytes]:
    """The keys of a queue that was declared since the last checkpoint."""
    name = queue.name
    found = {keys.config_key(name), keys.options_key(name), keys.queue_counts_key(name)}
    found.update(keys.active_key(name, number) for number in queue.messages.dirty)
    for which in LISTS:
        found.update(bucket_key(name, which, number) for number in queue.settled_list(which).dirty)
    return frozenset(found)


async def _count(
    garbage: list[int],
    dirty: Dirty,
    batch: Batch,
    store: Reads,
    fresh: Mapping[int, bytes],
    counts: RouteCounts,
    log: LogState,
) -> set[int]:
    """Bring the counts of queues that need a message up to date, and delete the messages that no queue needs any more.

    Payload, metadata and attempts go together. A message that is in several queues, or in chunks, or that was moved,
    has an entry in a routes block, which counts the queues left. Where the log keeps what no queue needs, the entry
    says so instead. Returns what was deleted.
    """
    new = dirty.routes
    changes: dict[int, int] = dict.fromkeys(new, 0)
    changes.update(dirty.joined)
    changes.update(dict.fromkeys(dirty.outdated - changes.keys(), 0))
    for id, lost in Counter(garbage).items():
        changes[id] = changes.get(id, 0) - lost
    gone, kept = set(), 0
    for ids in portions(sorted(changes)):
        await counts.load(ids)
        for number, id in enumerate(ids):
            if number % _COUNTS_PER_TURN == _COUNTS_PER_TURN - 1:
                await asyncio.sleep(0)
            stored = new[id] if id in new else counts.get(id)
            was_kept = stored >= KEPT_IN_CHUNKS
            kept -= was_kept
            count = changes[id] + (0 if was_kept else stored or 1)
            if count > 0:
                counts.set(id, count)
                continue
            if id >= log.kept_from and id not in dirty.outdated:
                counts.keep(id, in_chunks=stored not in (0, KEPT))
                kept += 1
                continue
            gone.add(id)
            for key in (keys.payload_key(id), keys.metadata_key(id), keys.attempts_key(id)):
                batch.delete(key)
            if stored:
                counts.set(id, 0)
                if stored == KEPT:
                    continue
                chunks = payloads.chunk_count(fresh[id]) if id in fresh else await _chunks(id, store)
                for chunk in range(chunks):
                    batch.delete(keys.chunk_key(id, chunk))
        await counts.put_into(batch)
    dirty.log |= log.count(kept)
    return gone


async def _chunks(id: int, store: Reads) -> int:
    """How many chunk records a stored message has."""
    key = keys.payload_key(id)
    value = await store.get(key)
    decoded = payload.decode(key, value) if value is not None else b""
    chunks = None if isinstance(decoded, bytes) else payload.parse_chunks_uri(decoded.uri)
    return chunks[0] if chunks else 0
