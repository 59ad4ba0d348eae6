"""Before recovery from a bucket: many requests at once, so that recovery makes few of them one after the other."""

from __future__ import annotations

from ..records import keys
from ..slatedb.store_reads import Reads

#: kinds that recovery reads, and whose blocks in a small table have those of the others, too
_SPREAD = [
    keys.RecordKind.ACTIVE, keys.RecordKind.DONE, keys.RecordKind.FAILED, keys.RecordKind.CONFIG,
    keys.RecordKind.PRODUCER, keys.RecordKind.LEASES, keys.RecordKind.HISTORY_LOG, keys.RecordKind.QUEUE_COUNTS,
]  # fmt: skip


async def warm_up(store: Reads) -> None:
    """Fill the caches with what recovery reads piece by piece: first the tables' indexes, then a block of each kind.

    A request to a bucket takes long, but many take no longer than one.
    """
    await store.scan(b"", None, limit=1, read_ahead_bytes=1 << 14)
    await store.scan_many([keys.kind_range(kind) for kind in _SPREAD], 1)
