"""Checks of the records that exist once in a store, and of the records that each queue must have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...storage.engine_sizes import SIZES
from ...storage.records import keys
from ...storage.records.definitions import NO_OVERRIDES
from ...storage.records.keys import ParsedKey, RecordKind
from ...storage.state.cold_summaries import PARTITION_BITS
from ..records.message_facts import IN_FLIGHT, entries_of, span_of
from .family import Family, QueueFacts

_ACTIVE, _DONE, _FAILED = RecordKind.ACTIVE, RecordKind.DONE, RecordKind.FAILED
_ARCHIVED = RecordKind.ARCHIVED_FAILED
#: further records that a queue may have
_EXTRAS = RecordKind.QUEUE_COUNTS, RecordKind.FLOW, RecordKind.PARTITION
#: buckets that every queue has
_BUCKETS = {_ACTIVE: keys.active_key, _DONE: keys.done_key, _FAILED: keys.failed_key}
#: entries of a full bucket, by kind
_LARGEST = {_ACTIVE: SIZES.bucket_entries, **dict.fromkeys((_DONE, _FAILED, _ARCHIVED), SIZES.settled_entries)}


class QueueFamily(Family):
    """Family of config, options, overrides, counts and buckets. Collects summaries of buckets, and ids in flight."""

    kinds = (
        RecordKind.CONFIG, RecordKind.OPTIONS, RecordKind.OVERRIDES, *_EXTRAS, _ACTIVE, _DONE, _FAILED, _ARCHIVED,
    )  # fmt: skip

    def record(self, key: ParsedKey, raw: bytes, value: Any) -> None:
        queue = self.context.queue(key.name or "")
        if key.kind is RecordKind.CONFIG:
            queue.config = value
            if not value.max_attempts:
                self.add("settings-implausible", f"queue {key.name!r} allows 0 attempts", key=raw, queue=key.name)
        elif key.kind is RecordKind.OPTIONS:
            queue.options = value
            if not value.lease_seconds:
                self.add("settings-implausible", f"queue {key.name!r} leases for 0 s", key=raw, queue=key.name)
        elif key.kind is RecordKind.OVERRIDES:
            queue.overrides = value
        elif key.kind in _EXTRAS:
            queue.extras.add(key.kind)
            if key.kind is RecordKind.PARTITION:
                queue.partitions.add(key.partition or 0)
        else:
            self._bucket(queue, key, raw, value)

    def _bucket(self, queue: QueueFacts, key: ParsedKey, raw: bytes, value: Any) -> None:
        kind, number = key.kind, key.bucket or 0
        queue.buckets.setdefault(kind, []).append(number)
        span = span_of(kind, raw, queue.name, number, value)
        if span is None:
            return
        self.context.spans.append(span)
        queue.filled.setdefault(kind, []).append(number)
        for state, entry in entries_of(kind, value):
            if state == IN_FLIGHT:
                self.context.in_flight.add((queue.name, entry[0]))
        if span.entries > _LARGEST[kind]:
            text = f"{kind.value} bucket {number} of queue {queue.name!r} has {span.entries} entries"
            self.add("bucket-overfull", text, key=raw, queue=queue.name)

    async def finish(self) -> None:
        for queue in self.context.queues.values():
            missing = list(self._missing(queue))
            if queue.options is None and queue.config is None:
                if self.context.sees(RecordKind.OPTIONS, RecordKind.CONFIG):
                    record_kinds = [*queue.buckets, *sorted(queue.extras, key=lambda kind: kind.prefix)]
                    record_kinds += [RecordKind.OVERRIDES] if queue.overrides != NO_OVERRIDES else ()
                    kinds = ", ".join(kind.value for kind in record_kinds)
                    text = f"there is no queue {queue.name!r}, but it has records: {kinds}"
                    self.add("queue-unknown", text, queue=queue.name)
            elif missing:
                names = ", ".join(name for name, _key in missing)
                text = f"records of queue {queue.name!r} are missing: {names}"
                self.add("queue-incomplete", text, key=missing[0][1], queue=queue.name)
            self._order(queue)

    def _missing(self, queue: QueueFacts) -> Iterator[tuple[str, bytes]]:
        required = [
            (RecordKind.CONFIG, keys.config_key(queue.name), queue.config is not None),
            (RecordKind.OPTIONS, keys.options_key(queue.name), queue.options is not None),
        ]
        required += [(kind, key(queue.name, 0), 0 in queue.buckets.get(kind, ())) for kind, key in _BUCKETS.items()]
        for kind, key, exists in required:
            if not exists and self.context.store.can_tell(key) and self.context.sees(kind):
                yield kind.value, key

    def _order(self, queue: QueueFacts) -> None:
        """Check that settled lists begin with their first buckets, and that inner active buckets are not empty."""
        if queue.options is not None:
            firsts = {_DONE: queue.options.first_done_bucket, _FAILED: queue.options.first_failed_bucket}
            for kind, first in firsts.items():
                self._settled_order(queue, kind, first)
        numbers = queue.buckets.get(_ACTIVE, ())
        partitions = {number >> PARTITION_BITS for number in numbers}
        if self.context.sees(RecordKind.PARTITION):
            for missing in sorted(partitions - queue.partitions - {0}):
                text = f"partition {missing} of queue {queue.name!r} has messages and no record"
                key = keys.partition_key(queue.name, missing)
                self.add("partition-missing", text, key=key, queue=queue.name)
        last = max((number for number in numbers if not number >> PARTITION_BITS), default=0)
        for number in set(numbers) - set(queue.filled.get(_ACTIVE, ())) - {0, last}:
            key = keys.active_key(queue.name, number)
            text = f"active bucket {number} of queue {queue.name!r} is empty but not the last one"
            self.add("bucket-empty", text, key=key, queue=queue.name)

    def _settled_order(self, queue: QueueFacts, kind: RecordKind, first: int) -> None:
        numbers = queue.buckets.get(kind, [])
        overlooked = [number for number in queue.filled.get(kind, ()) if number < first]
        for number in overlooked:
            text = f"{kind.value} bucket {number} of queue {queue.name!r} is before the first one, {first}"
            self.add("bucket-order", text, key=_BUCKETS[kind](queue.name, number), queue=queue.name)
        last = max(numbers, default=first)
        if first > last + 1 and self.context.sees(kind):
            text = f"the {kind.value} list of queue {queue.name!r} begins with bucket {first} but ends with {last}"
            self.add("bucket-order", text, key=keys.options_key(queue.name), queue=queue.name)


class HeaderFamily(Family):
    """Family of records that exist once in a store."""

    kinds = (
        RecordKind.STORE_HEADER, RecordKind.SEQ_BLOCK, RecordKind.JOURNAL_POSITION, RecordKind.NEWEST_TIME,
        RecordKind.LOG_RETENTION,
    )  # fmt: skip

    def record(self, key: ParsedKey, raw: bytes, value: Any) -> None:
        plausible = self.context.is_plausible
        if key.kind is RecordKind.SEQ_BLOCK:
            self._block(raw, *value)
        elif key.kind is RecordKind.STORE_HEADER:
            instance = self.context.store.location.instance
            if value.instance != instance:
                text = f"the header names the instance {value.instance!r}, but the store is at {instance!r}"
                self.add("header-instance", text, key=raw)
            if not 0 < value.created_at_ms <= self.context.now_ms + 86_400_000:
                self.add("time-implausible", f"the store was created at {value.created_at_ms} ms", key=raw)
        elif key.kind is RecordKind.NEWEST_TIME and not plausible(value):
            self.add("time-implausible", f"the newest time in the store is {value} ms", key=raw)
        elif key.kind is RecordKind.LOG_RETENTION and value.swept_at_ms and not plausible(value.swept_at_ms):
            self.add("time-implausible", f"the log was swept at {value.swept_at_ms} ms", key=raw)

    def _block(self, raw: bytes, base: int, size: int) -> None:
        self.context.block_end = base + size
        if not size or base + size > keys.MAX_MESSAGE_ID:
            self.add("sequence-behind", f"the sequence block has {size} ids from {base} on", key=raw)

    async def finish(self) -> None:
        context = self.context
        last_id = max((span.high for span in context.spans), default=None)
        if context.block_end is not None or last_id is None or not context.sees(RecordKind.SEQ_BLOCK):
            return
        if context.store.can_tell(keys.SEQ_BLOCK_KEY):
            text = f"there is no sequence block, but message ids up to {last_id} are in use"
            self.add("sequence-missing", text, key=keys.SEQ_BLOCK_KEY)
