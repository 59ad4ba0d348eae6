"""Recovery: rebuilds the state from SlateDB's records and the effects in the journal that they lack."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from itertools import chain, repeat

from ...errors import CorruptRecord
from ..clock import Clock
from ..effects import codec
from ..effects.codec import Commit
from ..records import (
    active,
    dead_letter,
    definitions,
    keys,
    partition,
    routing_cursor,
    session_records,
    settled,
    store_records,
)
from ..records.kinds import U64
from ..records.store_records import StoreHeader
from ..slatedb.store_reads import Reads
from ..slatedb.store_writer import SlateStore
from ..state.cold_summaries import PARTITION_BITS, Summary
from ..state.flow_limits import PARTITION, FlowLimits, FlowRules
from ..state.history_log import HistoryLog
from ..state.queue_state import QueueState
from ..state.settled_list import ListName, bucket_key
from ..state.store_state import Queue, QueueSettings, StoreState
from .journal import Journal
from .measurements import measure_bytes

Wanted = set[tuple[str, int]]
Row = tuple[bytes, bytes]


async def check_header(store: SlateStore, instance: str, now: int) -> None:
    """Write the header of a new store; check that an existing store has this version's format.

    Raises:
        UnsupportedFormat: the store has another format.
        CorruptRecord: the header does not decode.
    """
    value = await store.get(keys.STORE_HEADER_KEY)
    if value is not None:
        store_records.decode_header(keys.STORE_HEADER_KEY, value)
        return
    batch = store.batch()
    batch.put(keys.STORE_HEADER_KEY, store_records.encode_header(StoreHeader(now, instance)))
    await store.write(batch)
    await store.flush_wal()


async def rebuild(
    state: StoreState, store: Reads, commits: list[Commit], clock: Clock, history: HistoryLog | None = None
) -> None:
    """Fill an empty state with the store's records and these commits, which follow the store's journal position.

    Args:
        history: receives the rows of the effects, after those of the store's log.

    Raises:
        CorruptRecord: a record does not decode, or a commit changes what the store does not have.
    """
    needed_buckets: Wanted = {place for effects in commits for effect in effects for place in effect.active_buckets()}
    await _load_settings(store, state)
    await _load_active(store, state, needed_buckets, clock.now_ms())
    await asyncio.gather(
        _load_sessions(store, state),
        state.results.load(store),
        state.staged.load(store),
        state.segments.load(store),
        state.running.load(store),
        state.handled.load(store),
        _load_dead_letters(store, state),
        _load_cursors(store, state),
        _load_settled(store, state, commits),
    )
    for (name, _id, _token), task in chain.from_iterable(map(dict.items, state.running.by_session.values())):
        if task.partition and name in state.queues:
            partitions = state.queues[name].messages.partitions
            if partitions is not None and task.partition in partitions:
                partitions[task.partition].running += 1
    state.staged.upgrade(id for _queue, id, _token in state.running.by_lease)
    state.history = history
    for effects in commits:
        for effect in effects:
            try:
                effect.apply(state)
            except LookupError as error:
                raise CorruptRecord(
                    f"a change in the journal does not fit the store ({error!r}): files of the store are damaged or "
                    "older than the journal; restore a backup",
                    key=keys.JOURNAL_POSITION_KEY,
                    offset=0,
                ) from error
    clock.not_before(state.newest_ms)
    now = clock.now_ms()
    for queue in state.queues.values():
        queue.counts.start(now)
        queue.forget_at_hand()
    for queue in state.queues.values():
        if queue.messages.counts_bytes:
            await measure_bytes(store, queue.messages)


async def read_journal(store: SlateStore, journal: Journal | None, *, power_lost: bool = False) -> list[Commit]:
    """Return the commits that the store does not contain yet.

    Args:
        power_lost: the records since the last sync may be torn.

    Raises:
        CorruptRecord: a record does not decode, or was damaged in the file.
    """
    if journal is None:
        return []
    value = await store.get(keys.JOURNAL_POSITION_KEY)
    position = store_records.decode_journal_position(keys.JOURNAL_POSITION_KEY, value) if value is not None else 0
    records = journal.replay(position, codec.unsynced if power_lost else None)
    return [codec.decode(payload) for _sequence, payload in records]


async def _rows(store: Reads, prefix: bytes) -> list[Row]:
    return [row async for rows in store.scan_batches(*keys.prefix_range(prefix)) for row in rows]


#: kinds that :func:`_load_settings` reads in parallel, because a request to a bucket takes long
_SETTINGS = (
    keys.RecordKind.OPTIONS, keys.RecordKind.CONFIG, keys.RecordKind.ARCHIVED_FAILED, keys.RecordKind.QUEUE_COUNTS,
    keys.RecordKind.EXCHANGE, keys.RecordKind.BINDING, keys.RecordKind.PRODUCER, keys.RecordKind.REMOVAL,
    keys.RecordKind.OVERRIDES, keys.RecordKind.FLOW, keys.RecordKind.PARTITION,
)  # fmt: skip
_LIST_READ_AHEAD_BYTES = 256 << 10


async def _load_settings(store: Reads, state: StoreState) -> None:
    """Load the newest time, message ids, queues with settled lists, exchanges, bindings and sessions' last calls."""
    rows_by_kind = await asyncio.gather(*(_rows(store, kind.prefix) for kind in _SETTINGS))
    option_rows, configs, archived, counts, exchanges, bindings, producers, removals, changes, flow, partitions = (
        rows_by_kind
    )
    await _load_marks(store, state)
    await _load_queues(store, state, option_rows, dict(configs))
    for key, value in changes:
        if (name := keys.parse(key).name or "") in state.queues:
            state.override_queue(name, definitions.decode_overrides(key, value))
    state.dirty.overrides.clear()
    state.dirty.flow.clear()
    state.dirty.queues.difference_update(state.queues)
    for key, value in flow:
        if (limited_queue := state.queues.get(keys.parse(key).name or "")) is not None:
            limits = limited_queue.flow = limited_queue.flow or FlowLimits()
            limits.full_at_ns, limits.delayed_until_ms = definitions.decode_flow(key, value)
    _load_archives(state, archived)
    _load_partitions(state, partitions)
    for key, value in counts:
        counted_queue = state.queues.get(keys.parse(key).name or "")
        if counted_queue is not None:
            counted_queue.counts.restore(*definitions.decode_counts(key, value))
    for key, value in exchanges:
        state.topology.add_exchange(keys.parse(key).name or "", *definitions.decode_exchange(key, value))
    for key, value in bindings:
        parsed = keys.parse(key)
        exchange, queue, routing_key = parsed.name or "", parsed.queue or "", parsed.routing_key or ""
        if exchange in state.topology.exchanges and queue in state.queues:
            state.topology.bind(queue, exchange, routing_key, definitions.decode_binding(key, value))
    for key, value in producers:
        state.producers[key[2:]] = session_records.decode_producer(key, value)
    for key, value in removals:
        state.removals[key[2:]] = session_records.decode_removal(key, value)


async def _load_marks(store: Reads, state: StoreState) -> None:
    marks = keys.NEWEST_TIME_KEY, keys.LOG_RETENTION_KEY, keys.SEQ_BLOCK_KEY
    at, retention, block = await asyncio.gather(*map(store.get, marks))
    if at is not None:
        state.newest_ms = store_records.decode_newest_time(keys.NEWEST_TIME_KEY, at)
    if retention is not None:
        state.log.record = store_records.decode_log_retention(keys.LOG_RETENTION_KEY, retention)
    if block is not None:
        base, size = store_records.decode_seq_block(keys.SEQ_BLOCK_KEY, block)
        state.next_id = state.block_end = base + size


async def _load_queues(store: Reads, state: StoreState, options: Iterable[Row], configs: dict[bytes, bytes]) -> None:
    first_done: dict[str, int] = {}
    first_failed: dict[str, int] = {}
    for key, value in options:
        name = keys.parse(key).name or ""
        record = definitions.decode_options(key, value)
        limits = definitions.decode_config(keys.config_key(name), configs.get(keys.config_key(name), b""))
        settings = QueueSettings(
            max_attempts=limits.max_attempts,
            done_retention_seconds=limits.done_retention_seconds,
            failed_retention_seconds=record.failed_retention_seconds,
            lease_seconds=record.lease_seconds,
            arguments=record.arguments,
        )
        state.declare_queue(name, settings)
        first_done[name], first_failed[name] = record.first_done_bucket, record.first_failed_bucket

    async def load_lists(which: ListName, firsts: dict[str, int], names: list[str]) -> None:
        async with aclosing(_tails(store, which, names[0], names[-1], state.sizes.list_rows)) as tails:
            async for name, key, value in tails:
                if (queue := state.queues.get(name)) is not None:
                    rows = settled.decode(key, value)
                    queue.settled_list(which).restore(firsts[name], keys.parse(key).bucket or 0, rows)

    names = sorted(first_done, key=keys.done_key)
    size = -(-len(names) // state.sizes.list_parts) or 1
    parts = [names[at : at + size] for at in range(0, len(names), size)]
    await asyncio.gather(
        *(load_lists("done", first_done, part) for part in parts),
        *(load_lists("failed", first_failed, part) for part in parts),
    )


async def _tails(
    store: Reads, which: ListName, first_name: str, last_name: str, rows_of_a_read: int
) -> AsyncGenerator[tuple[str, bytes, bytes], None]:
    """Yield name and last record of this settled list for each queue from ``first_name`` to ``last_name``.

    There may be thousands of queues with one bucket each, and queues with thousands of buckets. So all records are read
    in order, but after a read that contained a single list, the rest of this list is skipped.
    """
    start = bucket_key(first_name, which, 0)
    end = keys.prefix_range(bucket_key(last_name, which, 0))[1]
    while True:
        last: tuple[str, bytes, bytes] | None = None
        is_long = False
        batches = store.scan_batches(start, end, batch=rows_of_a_read, read_ahead_bytes=_LIST_READ_AHEAD_BYTES)
        async with aclosing(batches) as batch_iterator:
            async for rows in batch_iterator:
                names = [keys.parse(key).name or "" for key, _value in rows]
                is_long = len(rows) == rows_of_a_read and names[0] == names[-1]
                for name, (key, value) in zip(names, rows, strict=True):
                    if last is not None and last[0] != name:
                        yield last
                    last = name, key, value
                if is_long:
                    break
        if last is None:
            return
        if not is_long:
            yield last
            return
        whole = keys.prefix_range(bucket_key(last[0], which, 0))
        for key, value in await store.scan(*whole, limit=1, descending=True):
            yield last[0], key, value
        start = whole[1]


def _load_partitions(state: StoreState, rows: Iterable[Row]) -> None:
    for key, value in rows:
        parsed = keys.parse(key)
        if (queue := state.queues.get(parsed.name or "")) is not None:
            record = partition.decode(key, value)
            opened = queue.messages.open_partition(parsed.partition or 0, record.by, record.key)
            if record.full_at_ns or record.delayed_until_ms:
                opened.flow = FlowLimits(FlowRules.of(queue.options.arguments, PARTITION))
                opened.flow.full_at_ns, opened.flow.delayed_until_ms = record.full_at_ns, record.delayed_until_ms
    for queue in state.queues.values():
        if queue.messages.partitions is not None:
            queue.messages.partitions.changed.clear()


def _load_archives(state: StoreState, rows: Iterable[Row]) -> None:
    """Load the tails of the lists of archived messages, which few queues have.

    The records are in order of queue and bucket.
    """
    first: dict[str, int] = {}
    last: dict[str, tuple[bytes, bytes]] = {}
    for key, value in rows:
        parsed = keys.parse(key)
        first.setdefault(parsed.name or "", parsed.bucket or 0)
        last[parsed.name or ""] = key, value
    for name in last.keys() & state.queues.keys():
        key, value = last[name]
        tail = keys.parse(key).bucket or 0
        state.queues[name].archived_failed.restore(first[name], tail, settled.decode(key, value))


async def _load_active(store: Reads, state: StoreState, needed_buckets: Wanted, now: int) -> None:
    """Load the queues' buckets: with their messages if the journal or a lease needs them, else as a summary."""
    tails: dict[str, tuple[int, bytes, bytes]] = {}
    prefix: bytes | None = None
    queue: Queue | None = None
    async for rows in store.scan_batches(*keys.kind_range(keys.RecordKind.ACTIVE)):
        for key, value in rows:
            number = int.from_bytes(key[-U64.size :], "big")
            if not number or key[: -U64.size] != prefix:  # no further bucket of the same queue
                parsed = keys.parse(key)
                queue, number = state.queues.get(parsed.name or ""), parsed.bucket or 0
                prefix = keys.active_key(parsed.name or "")
            if queue is None:
                continue
            partition_number = number >> PARTITION_BITS
            if not partition_number:
                tails[queue.name] = (number, key, value)
            is_needed = number == 0 or (queue.name, number) in needed_buckets
            columns = None if is_needed else active.decode_columns(key, value)
            if columns is not None:
                if partition_number:
                    queue.messages.restore_tail(number, len(columns.ids), value)
                queue.messages.note_cold(number, Summary.of_columns(columns, now))
                if partition_number:
                    _restore_returning(queue.messages, number, key, value, now)
                continue
            available, in_flight = active.decode(key, value)
            is_loaded = is_needed or bool(in_flight)
            if partition_number:
                queue.messages.restore_tail(number, len(available) + len(in_flight), b"" if is_loaded else value)
            if is_loaded:
                queue.messages.restore(number, available, in_flight, now)
            else:
                queue.messages.note_cold(number, Summary.of(available, now))
            if partition_number:
                _restore_returning(queue.messages, number, key, value, now)
    for name, (number, key, value) in tails.items():
        messages = state.queues[name].messages
        available, in_flight = active.decode(key, value)
        if number not in messages.buckets:
            messages.restore(number, available, in_flight, now)
        messages.tail = number
        messages.tail_used = len(available) + len(in_flight)
        messages.dirty.clear()


def _restore_returning(messages: QueueState, number: int, key: bytes, value: bytes, now: int) -> None:
    partitions = messages.partitions
    if partitions is not None and partitions.limits.rules.concurrency == 1:
        partitions.restore_returning(number, active.decode(key, value)[0], now)


async def _load_sessions(store: Reads, state: StoreState) -> None:
    """Load the sessions and the deadlines of the messages in flight, which their entries do not contain.

    A lease without a holder belongs to the empty session. All sessions' names are kept until the journal is applied,
    because its claims and acks may belong to any session.
    """
    for key, value in await _rows(store, keys.RecordKind.LEASES.prefix):
        session = key[2:]
        record = session_records.decode_leases(key, value)
        state.session_names[session], state.session_owners[session] = record.consumer, record.owner
        for queue_name, ids in record.held.items():
            queue = state.queues.get(queue_name)
            if queue is None:
                continue
            for id, deadline in zip(ids, record.deadlines.get(queue_name) or repeat(0), strict=False):
                entry = queue.messages.in_flight.get(id)
                if entry is not None:
                    entry.session, entry.deadline = session, deadline
    for queue in state.queues.values():
        for entry in queue.messages.in_flight.values():
            state.leases.setdefault(entry.session, {})[(entry.queue, entry.id)] = entry


async def _load_dead_letters(store: Reads, state: StoreState) -> None:
    """Load the dead letters that are not published yet, oldest first."""
    letters = []
    for key, value in await _rows(store, keys.RecordKind.DEAD_LETTER.prefix):
        parsed = keys.parse(key)
        letters.append(((parsed.name or "", parsed.id or 0), dead_letter.decode(key, value)))
    letters.sort(key=lambda item: (item[1].at_ms, item[0][1]))
    state.dead_letters.update(letters)


async def _load_cursors(store: Reads, state: StoreState) -> None:
    for key, value in await _rows(store, keys.RecordKind.CURSOR.prefix):
        name = keys.parse(key).name or ""
        if name in state.queues:
            state.cursors[name] = routing_cursor.decode(key, value)


async def _load_settled(store: Reads, state: StoreState, commits: list[Commit]) -> None:
    """Load the buckets of settled lists from which the journal's effects take messages."""
    buckets = {place for effects in commits for effect in effects for place in effect.settled_buckets()}
    for name, which, number in buckets:
        queue = state.queues.get(name)
        if queue is None:
            continue
        log = queue.settled_list(which)
        key = bucket_key(name, which, number)
        value = await store.get(key)
        if value is not None and number != log.tail:
            log.at_hand[number] = settled.pack_entries(settled.decode(key, value))
