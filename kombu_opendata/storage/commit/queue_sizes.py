"""Measurement of the messages of a queue that counts bytes.

The queue's records have no sizes, so the payloads are read.
"""

from __future__ import annotations

from ..messages.payloads import read_sizes
from ..records import active, keys
from ..slatedb.store_reads import Reads
from ..state.queue_buckets import QueueEntry, Summary
from ..state.queue_state import QueueState


async def measure(store: Reads, messages: QueueState) -> None:
    """Count the bytes of a queue's messages. Publishes and deliveries may continue during the count."""
    messages.count_bytes(True)
    measured_ids: set[int] = set()
    measured: dict[int, Summary] = {}
    while True:  # other buckets may be loaded or evicted during the reads
        loaded = (*messages.available.values(), *messages.in_flight.values())
        entries = [entry for entry in loaded if not entry.size and entry.id not in measured_ids]
        cold = {
            number: summary
            for number, summary in messages.cold.items()
            if 0 in messages.cold.sizes.get(number, (0,)) and measured.get(number) is not summary
        }
        if not entries and not cold:
            return
        await _measure_loaded(store, messages, entries)
        measured_ids.update(entry.id for entry in entries)
        for number, summary in cold.items():
            await _measure_bucket(store, messages, number, summary)
        measured |= cold


async def _measure_loaded(store: Reads, messages: QueueState, entries: list[QueueEntry]) -> None:
    for entry, size in zip(entries, await read_sizes(store, [entry.id for entry in entries]), strict=True):
        messages.set_size(entry, size)


async def _measure_bucket(store: Reads, messages: QueueState, number: int, summary: Summary) -> None:
    key = keys.active_key(messages.name, number)
    value = await store.get(key)
    if value is None or messages.cold.get(number) is not summary:
        return
    sizes = await read_sizes(store, [row[0] for row in active.decode(key, value)[0]])
    if messages.cold.get(number) is summary:
        messages.measure(number, sizes)
