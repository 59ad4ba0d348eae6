"""Effects of staged jobs: their commit, and the routing of their rows (docs/rfcs/0008-staged-batches.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...staging.batch_block import IndexBlock
from ..records.payload import MAX_INLINE_BYTES, NewMessage
from ..state.message_deadlines import MAX_DEADLINE_MS
from ..state.staged_rows import StagedChunk, decode, each, records_of, spread
from ..state.staged_state import StagedBatch
from ..state.store_state import StoreState
from .effect import Effect
from .publishes import add_message


class CommitStagedEffect(Effect, tag=48):
    """The messages of a job's batches were created, with the ids from ``first_id`` on; none is routed yet."""

    job_id: str
    at_ms: int
    first_id: int
    batches: list[StagedBatch]

    def apply(self, state: StoreState) -> None:
        job = state.staged.commit(self.job_id, self.at_ms, self.first_id, self.batches)
        state.next_id = max(state.next_id, self.first_id + job.rows)


class RouteStagedEffect(StagedChunk, Effect, tag=49):
    """Rows of a job were added to queues: the fields of a chunk, and the routes.

    It contains the rows' block of the index, as in the batch object, so applying it needs no object.

    Attributes:
        targets: lists of queues.
        runs: flat list target, rows, target, rows, …; target -1 for rows without a queue.
        places: queue → flat list bucket, rows, bucket, rows, …
    """

    targets: list[list[str]]
    runs: list[int]
    places: dict[str, list[int]]

    @classmethod
    def of(
        cls, chunk: StagedChunk, targets: list[list[str]], runs: list[int], places: dict[str, list[int]]
    ) -> RouteStagedEffect:
        """Build the effect for a chunk's rows."""
        return cls(
            chunk.job_id, chunk.first_id, chunk.at_ms, chunk.received_at_ms, chunk.path, chunk.offset, chunk.rows,
            chunk.block, chunk.payload, targets, runs, places,
        )  # fmt: skip

    def apply(self, state: StoreState) -> None:
        self.apply_block(state, decode(self) if self.block else None)

    def apply_block(self, state: StoreState, block: IndexBlock | None) -> None:
        """Apply the effect with its decoded block; None if the block's rows are damaged."""
        id, unroutable, received = self.first_id, 0, self.received_at_ms
        is_inline, targets = bool(self.payload), self.targets
        numbers = {name: spread(buckets) for name, buckets in self.places.items()}
        rows = _rows(self, block) if block is not None else ()
        for row, target in zip(rows, spread(self.runs), strict=block is not None):
            if target < 0:
                unroutable += 1
            else:
                places = [(name, next(numbers[name])) for name in targets[target]]
                priority, visible, deadline, size = row
                large = is_inline and size > MAX_INLINE_BYTES
                add_message(state, id, places, priority, visible, deadline, received, large=large, size=size)
            id += 1
        for target, count in zip(self.runs[::2], self.runs[1::2], strict=True):
            for name in targets[target] if target >= 0 else ():
                state.staged.add_routed(self.job_id, name, count)
        damaged = block is None
        state.staged.routed(self.job_id, self.rows, self.rows if damaged else unroutable, damaged, self.at_ms)

    def new_messages(self) -> Iterable[NewMessage]:
        return records_of(self, decode(self), self.runs) if self.block else ()


def _rows(chunk: StagedChunk, block: IndexBlock) -> Iterator[tuple[int, int, int, int]]:
    """Yield the stored priority (lower first), visible time, deadline and size of each row."""
    received = chunk.received_at_ms
    priorities, visible, ttls = map(each, (block.priority, block.visible_at_ms, block.ttl_ms))
    for priority, visible_at, ttl, length in zip(priorities, visible, ttls, block.lengths, strict=False):
        deadline = min(received + ttl, MAX_DEADLINE_MS) if ttl >= 0 else 0
        yield 255 - priority, visible_at if visible_at > received else received, deadline, length
