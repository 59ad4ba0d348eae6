"""A checkpoint: one atomic SlateDB batch that brings the store to the state in memory.

The batch is built from the state without a turn of the event loop in between. The few records that depend on their old
value are added next (:mod:`.checkpoint_deletions`), and the batch is written and flushed. The batch also contains the
journal's position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from ..records import (
    active,
    checkpoint_marks,
    config,
    dead_letter,
    keys,
    leases,
    options,
    overrides,
    producer,
    queue_counts,
    removal,
    routing_cursor,
    seq_block,
    settled,
    topology,
)
from ..records.config import QueueConfig
from ..records.leases import SessionLeases
from ..records.overrides import NO_OVERRIDES
from ..slatedb.ffi import WriteBatch
from ..state.queue_buckets import QueueEntry
from ..state.settled_list import LISTS, ListName, bucket_key
from ..state.store_state import Dirty, Queue, StoreState

T = TypeVar("T")


def snapshot(state: StoreState, batch: WriteBatch, position: int | None, now: int) -> Dirty:
    """Add all changed records to ``batch``; the returned Dirty lists the changes that need the store's old values."""
    dirty, state.dirty = state.dirty, Dirty()
    redeclared = dirty.deleted_queues.keys() & state.queues.keys()
    dirty.redeclared = {name: _records_of(state.queues[name]) for name in redeclared}
    for name in state.changed & state.queues.keys():  # there may be thousands, of which few have changed
        _put_queue(state.queues[name], batch)
        dirty.touched.append(state.queues[name])
    state.changed.clear()
    for name in dirty.queues & state.queues.keys():
        _put_options(state, state.queues[name], batch)
    for name in dirty.overrides & state.queues.keys():
        values = state.queues[name].overrides
        _put_or_delete(batch, keys.overrides_key(name), None if values == NO_OVERRIDES else values, overrides.encode)
    _put_topology(state, dirty, batch)
    _put_sessions(state, dirty, batch, now)
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
        batch.put(keys.SEQ_BLOCK_KEY, seq_block.encode(*dirty.block))
    if position is not None:
        batch.put(keys.JOURNAL_POSITION_KEY, checkpoint_marks.encode_journal_position(position))
    if state.newest_ms and (len(batch) or dirty):
        batch.put(keys.NEWEST_TIME_KEY, checkpoint_marks.encode_newest_time(state.newest_ms))
    return dirty


def _put_or_delete(batch: WriteBatch, key: bytes, record: T | None, encode: Callable[[T], bytes]) -> None:
    """Put the record, or delete the key if the record is None."""
    if record is None:
        batch.delete(key)
    else:
        batch.put(key, encode(record))


def _put_queue(queue: Queue, batch: WriteBatch) -> None:
    messages = queue.messages
    if messages.dirty or messages.dropped:  # every counted event changes a bucket
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


def _put_counts(queue: Queue, batch: WriteBatch) -> None:
    counts = queue.counts
    values = counts.changed()
    if values is not None:
        stored = queue_counts.StoredCounts(counts.created_at_ms, counts.since_ms, values)
        batch.put(keys.queue_counts_key(queue.name), queue_counts.encode(stored))


def _put_log(queue: Queue, which: ListName, batch: WriteBatch) -> None:
    log = queue.settled_list(which)
    for number, rows in log.dirty.items():
        key = bucket_key(queue.name, which, number)
        if rows or number == log.tail or (number == 0 and not log.optional):
            batch.put(key, settled.join(rows))
        else:
            batch.delete(key)
    log.dirty.clear()


def _put_options(state: StoreState, queue: Queue, batch: WriteBatch) -> None:
    name, chosen = queue.name, queue.declared
    filter_text = state.topology.filter_of(name)
    value = config.encode(QueueConfig(filter_text, chosen.max_attempts, chosen.done_retention_seconds))
    batch.put(keys.config_key(name), value)
    stored = options.QueueOptionsRecord(
        chosen.failed_retention_seconds,
        chosen.lease_seconds,
        queue.done.first,
        queue.failed.first,
        chosen.arguments,
    )
    batch.put(keys.options_key(name), options.encode(stored))


def _put_topology(state: StoreState, dirty: Dirty, batch: WriteBatch) -> None:
    exchanges = state.topology.exchanges
    for name in dirty.exchanges:
        exchange = exchanges.get(name)
        if exchange is None:
            batch.delete(keys.exchange_key(name))
        else:
            stored = topology.ExchangeRecord(exchange.type, exchange.durable, exchange.auto_delete, exchange.arguments)
            batch.put(keys.exchange_key(name), topology.encode_exchange(stored))
    for queue, name, routing_key, identity in dirty.bindings:
        exchange = exchanges.get(name)
        key = keys.binding_key(name, queue, routing_key, identity)
        arguments = state.topology.binding(queue, name, routing_key, identity)
        if exchange is not None and exchange.durable and arguments is not None:
            batch.put(key, topology.encode_binding(arguments))
        else:
            batch.delete(key)


def _put_sessions(state: StoreState, dirty: Dirty, batch: WriteBatch, now: int) -> None:
    for session in dirty.producers:
        _put_or_delete(batch, keys.producer_key(session), state.producers.get(session), producer.encode)
    for session in dirty.removals:
        _put_or_delete(batch, keys.removal_key(session), state.removals.get(session), removal.encode)
    for session in dirty.sessions:
        groups: dict[str, list[QueueEntry]] = {}
        for entry in state.leases.get(session, {}).values():
            groups.setdefault(entry.queue, []).append(entry)
        name = state.session_names.get(session, "")
        if groups or name:
            batch.put(keys.session_key(session), leases.encode(_leases(name, now, groups)))
        else:
            batch.delete(keys.session_key(session))


def _leases(name: str, now: int, groups: Mapping[str, list[QueueEntry]]) -> SessionLeases:
    held = {queue: [entry.id for entry in entries] for queue, entries in groups.items()}
    deadlines = {queue: [entry.deadline for entry in entries] for queue, entries in groups.items()}
    deadlines = {queue: values for queue, values in deadlines.items() if any(values)}
    return SessionLeases(name, now, held, deadlines)


def _records_of(queue: Queue) -> frozenset[bytes]:
    """Return the keys of a queue that was declared since the last checkpoint."""
    name = queue.name
    queue_keys = {keys.config_key(name), keys.options_key(name), keys.queue_counts_key(name)}
    if queue.overrides != NO_OVERRIDES:
        queue_keys.add(keys.overrides_key(name))
    queue_keys.update(keys.active_key(name, number) for number in queue.messages.dirty)
    for which in LISTS:
        queue_keys.update(bucket_key(name, which, number) for number in queue.settled_list(which).dirty)
    return frozenset(queue_keys)
