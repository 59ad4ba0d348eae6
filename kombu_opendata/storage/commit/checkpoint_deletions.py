"""Checkpoint records that depend on the store's old values: attempts, deleted queues, unneeded messages."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Set

from ..records import attempts, keys, payload, settled
from ..records.routes_block import KEPT, KEPT_IN_CHUNKS
from ..slatedb.ffi import WriteBatch
from ..slatedb.store_reads import Reads
from ..state.log_retention_state import LogState
from ..state.store_state import DeletedQueue, Dirty, StoreState
from .route_counts import RouteCounts, portions

#: messages whose counts are updated in one turn of the event loop
_COUNTS_PER_TURN = 250


async def resolve(
    dirty: Dirty,
    batch: WriteBatch,
    store: Reads,
    fresh: Mapping[int, bytes],
    state: StoreState,
) -> set[int]:
    """Add the records that depend on the store's old values: attempts, deleted queues, counts of queues, garbage.

    ``fresh`` are the payloads in the batch. Returns the ids of the deleted messages.
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
        # Only the first is in the store: the others were declared and deleted since the last checkpoint.
        new_keys = dirty.redeclared.get(name, frozenset())
        stored_ids = await _delete_queue_records(name, incarnations[0], new_keys, batch, store)
        garbage += (incarnations[0].ids | stored_ids) - incarnations[0].dead_letters
        garbage += [id for deleted in incarnations[1:] for id in deleted.ids - deleted.dead_letters]
    deleted_ids = await _count(garbage, dirty, batch, store, fresh, counts, state.log)
    if dirty.log:
        state.log.put_into(batch)
    state.staged.collected(deleted_ids, batch)
    return deleted_ids


async def _delete_queue_records(
    name: str, deleted: DeletedQueue, kept: Set[bytes], batch: WriteBatch, store: Reads
) -> set[int]:
    """Delete a queue's records except those that were just put (``kept``); return the ids of its settled messages."""
    ids: set[int] = set()
    queue_keys = [key(name) for key in (keys.config_key, keys.options_key, keys.queue_counts_key, keys.overrides_key)]
    for prefix, loaded_buckets in (
        (keys.active_key(name), None),
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
        if key not in kept:
            batch.delete(key)
    return ids


async def _count(
    garbage: list[int],
    dirty: Dirty,
    batch: WriteBatch,
    store: Reads,
    fresh: Mapping[int, bytes],
    counts: RouteCounts,
    log: LogState,
) -> set[int]:
    """Update the counts of queues that need a message, and delete the messages that no queue needs.

    Payload, metadata and attempts are deleted together. A message that is in several queues, or in chunks, or that was
    moved, has an entry in a routes block, which counts the remaining queues. If the log keeps a message that no queue
    needs, its entry marks it as kept instead. Returns the ids of the deleted messages.
    """
    new, changes = dirty.routes, _changes(garbage, dirty)
    deleted_ids, kept_count = set(), 0
    for ids in portions(sorted(changes)):
        await counts.load(ids)
        for number, id in enumerate(ids):
            if number % _COUNTS_PER_TURN == _COUNTS_PER_TURN - 1:
                await asyncio.sleep(0)
            stored_count = new[id] if id in new else counts.get(id)
            was_kept = stored_count >= KEPT_IN_CHUNKS
            kept_count -= was_kept
            count = changes[id] + (0 if was_kept else stored_count or 1)
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
            _delete_message(id, await _chunks(id, store, fresh.get(id)) if stored_count not in (0, KEPT) else 0, batch)
        await counts.put_into(batch)
    dirty.log |= log.count(kept_count)
    return deleted_ids


def _changes(garbage: list[int], dirty: Dirty) -> dict[int, int]:
    """Return the change in the number of queues of each message."""
    changes = dict.fromkeys(dirty.routes, 0) | dirty.joined
    changes.update(dict.fromkeys(dirty.outdated - changes.keys(), 0))
    for id, lost in Counter(garbage).items():
        changes[id] = changes.get(id, 0) - lost
    return changes


def _delete_message(id: int, chunks: int, batch: WriteBatch) -> None:
    for key in (keys.payload_key(id), keys.metadata_key(id), keys.attempts_key(id)):
        batch.delete(key)
    for chunk in range(chunks):
        batch.delete(keys.chunk_key(id, chunk))


async def _chunks(id: int, store: Reads, envelope: bytes | None) -> int:
    """Return the number of chunk records of a message; ``envelope`` is given if it is in the batch."""
    if envelope is not None:
        return payload.chunk_count(envelope)
    key = keys.payload_key(id)
    value = await store.get(key)
    decoded = payload.decode(key, value) if value is not None else b""
    chunks = None if isinstance(decoded, bytes) else payload.parse_chunks_uri(decoded.uri)
    return chunks.records if chunks else 0
