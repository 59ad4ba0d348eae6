"""Failed messages that get another chance or are archived, and settled ones that are deleted: in small steps.

Each step is one effect, so whatever ends this in between leaves every message in exactly one place.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from . import moves, stored_messages
from .effects.moved import ArchiveFailed, MoveSettled
from .membership import Membership
from .moves import Which
from .queue_buckets import QueueRow
from .records import settled
from .records.metadata import Metadata

if TYPE_CHECKING:
    from ..selectors import Selector
    from .engine import Engine
    from .state import Queue

#: messages that one step moves
_STEP = 256
#: messages whose membership in the target is looked up at once
_WINDOW = 16_384
#: collected messages after which a checkpoint is made, so that none is large
_GARBAGE_PER_CHECKPOINT = 4096
_ROW_BYTES = 60

SettledRow = tuple[int, int, int]


class Selection(NamedTuple):
    """Which settled messages: all that every field lets pass.

    Attributes:
        ids: of these; None for any.
        selector: whose metadata headers it matches.
        before_ms: that were settled before, ms since the epoch.
        limit: at most so many; 0 for no limit.
    """

    ids: Collection[int] | None = None
    selector: Selector | None = None
    before_ms: int | None = None
    limit: int = 0

    def takes(self, row: SettledRow) -> bool:
        """Whether a row passes, as far as it tells."""
        return (self.ids is None or row[0] in self.ids) and (self.before_ms is None or row[1] < self.before_ms)


class Redriven:
    """What became of failed messages.

    Attributes:
        ids: those that the target got in the last step.
        moved: how many it got in all.
        already: how many stayed since the target has them.
        expired: how many stayed since they are past their deadline.
        waiting: how many stayed since they are dead letters that are not published yet.
        is_full: whether the target took no more.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.moved = self.already = self.expired = self.waiting = 0
        self.is_full = False


#: told of each step; whether to go on
OnStep = Callable[[Redriven], bool]


@asynccontextmanager
async def settled_down(engine: Engine, rows: Iterable[QueueRow]) -> AsyncIterator[None]:
    """No checkpoint is under way, and none of these messages is about to be counted out of a queue.

    What retention removes is not in the journal: after a crash it is there again. So a message may come into a queue
    (again) only when it is certain that it left.
    """
    ids = {row.id for row in rows}
    while True:
        async with engine.commits.checkpointing:
            if ids.isdisjoint(engine.state.dirty.garbage):
                yield
                return
        await engine.commits.checkpoint()


# ---------------------------------------------------------------------- buckets
async def bring(engine: Engine, queue: Queue, which: Which, number: int) -> None:
    """Have a bucket of a settled list at hand. Only while no checkpoint is under way; then to be cleared."""
    log = moves.settled_log(queue, which)
    if log.loaded(number) is None:
        key = moves.bucket_key(queue.name, which, number)
        value = await engine.store.get(key)
        if value is not None:
            log.at_hand[number] = [settled.pack_entry(*row) for row in settled.decode(key, value)]


def rows_at_hand(queue: Queue, which: Which, number: int) -> list[SettledRow]:
    """The entries of a bucket that is in memory."""
    log = moves.settled_log(queue, which)
    rows = log.loaded(number)
    if rows is None:
        rows = log.at_hand.get(number, [])
    return settled.decode(b"", settled.join(rows))


async def _read(engine: Engine, queue: Queue, which: Which, number: int) -> list[SettledRow]:
    """The entries of a bucket as they are now."""
    async with engine.commits.checkpointing:
        try:
            await bring(engine, queue, which, number)
            return rows_at_hand(queue, which, number)
        finally:
            moves.settled_log(queue, which).at_hand.clear()


def _parts(rows: list[SettledRow], size: int) -> Iterator[list[SettledRow]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


# ---------------------------------------------------------------------- failed → available
class Redrive:
    """Moves failed messages of ``source``, or archived ones, to ``target``, which may be the same. Use :meth:`run`."""

    def __init__(
        self,
        engine: Engine,
        source: Queue,
        target: Queue,
        selection: Selection,
        accepts: Callable[[int, int], bool],
        on_step: OnStep,
        which: Which = "failed",
    ) -> None:
        self._engine, self._source, self._target = engine, source, target
        self._selection, self._accepts, self._on_step = selection, accepts, on_step
        self._which = which
        self._log = moves.settled_log(source, which)
        self.done = Redriven()

    async def run(self) -> Redriven:
        """Go through the list as it is at the beginning.

        Raises:
            StoreFull: the journal takes no more now; what was moved is moved.
            CorruptRecord, StoreError: the store can't be read.
        """
        engine = self._engine
        last = self._log.tail
        if engine.commits.is_dirty:
            # What came and failed just now has its metadata and size in the store only after it.
            await engine.commits.checkpoint()
        number = self._log.first
        while number <= last and self._is_alive():
            numbered: list[tuple[int, list[SettledRow]]] = []
            ids: set[int] = set()
            while number <= last and len(ids) < _WINDOW:
                rows = [
                    row for row in await _read(engine, self._source, self._which, number) if self._selection.takes(row)
                ]
                numbered.append((number, rows))
                ids.update(row[0] for row in rows)
                number += 1
            if not await self._window(numbered, ids):
                break
        return self.done

    def _is_alive(self) -> bool:
        queues = self._engine.state.queues
        return queues.get(self._source.name) is self._source and queues.get(self._target.name) is self._target

    async def _window(self, numbered: list[tuple[int, list[SettledRow]]], ids: set[int]) -> bool:
        """Move what some buckets have; whether to go on."""
        there = None
        if self._source is not self._target and ids:
            there = await Membership.of(self._engine.store, self._engine.commits, self._target, ids)
        try:
            for number, rows in numbered:
                for part in _parts(rows, _STEP):
                    found = await stored_messages.read_metadata(
                        self._engine.store, self._engine.payloads, [row[0] for row in part]
                    )
                    if not await self._step(number, found, there):
                        return False
            return True
        finally:
            if there is not None:
                there.detach()

    async def _step(self, number: int, found: dict[int, Metadata], there: Membership | None) -> bool:
        selector = self._selection.selector
        chosen = [message for message in found.values() if selector is None or selector.matches(message.headers)]
        chosen.sort(key=lambda message: message.message_id)
        rows = self._rows(chosen, there)
        await stored_messages.measure(self._engine.store, self._target, rows)
        async with settled_down(self._engine, rows):
            try:
                await bring(self._engine, self._source, self._which, number)
                if not self._is_alive():
                    return False
                present = {row[0] for row in rows_at_hand(self._source, self._which, number)}
                self._move(number, [row for row in rows if row.id in present and not (there and row.id in there)])
            finally:
                self._log.at_hand.clear()
        limit = self._selection.limit
        return self._on_step(self.done) and not self.done.is_full and not 0 < limit <= self.done.moved

    def _rows(self, chosen: list[Metadata], there: Membership | None) -> list[QueueRow]:
        """The target's rows, but for what stays."""
        at, letters, done = self._engine.clock.now_ms(), self._engine.state.dead_letters, self.done
        rows = []
        for message in chosen:
            if there is not None and message.message_id in there:
                done.already += 1
                continue
            if (self._source.name, message.message_id) in letters:
                done.waiting += 1
                continue
            row = stored_messages.row_of(message, stored_messages.priority_of(message.headers), self._target, at)
            if row is None:
                done.expired += 1
                continue
            stored_messages.after_lease(row, at)
            rows.append(row)
        return rows

    def _move(self, number: int, rows: list[QueueRow]) -> None:
        """One effect: out of the list, into the target."""
        engine, done, limit = self._engine, self.done, self._selection.limit
        size, fitting = 0, 0
        for row in rows:
            size += row.size
            if 0 < limit <= done.moved + fitting:
                break
            if not self._accepts(fitting + 1, size):
                done.is_full = True
                break
            fitting += 1
        rows = rows[:fitting]
        done.ids = [row.id for row in rows]
        if not rows:
            return
        engine.commits.check_room(_ROW_BYTES * (len(rows) + 4))
        stored_messages.place(self._target, rows)
        _apply(engine, self._source, self._which, number, done.ids, self._target.name, rows)
        done.moved += len(rows)


def _apply(
    engine: Engine, queue: Queue, which: Which, number: int, ids: list[int], target: str, rows: list[QueueRow]
) -> None:
    engine.commits.apply(MoveSettled(queue.name, engine.clock.now_ms(), which, number, ids, target, rows))
    engine.commits.needs_sync = True


# ---------------------------------------------------------------------- failed → archived failed
async def archive_failed(engine: Engine, queue: Queue, selection: Selection, go_on: Callable[[int], bool]) -> int:
    """Set failed messages of a queue aside; returns how many. They keep all they have, until somebody deletes them.

    Args:
        go_on: told how many so far after each step; whether to go on.

    Raises:
        StoreFull: the journal takes no more now; what was archived is archived.
        CorruptRecord, StoreError: the store can't be read.
    """
    log, archived, limit = queue.failed, 0, selection.limit
    for number in range(log.first, log.tail + 1):
        async with engine.commits.checkpointing:
            try:
                await bring(engine, queue, "failed", number)
                rows = [row for row in rows_at_hand(queue, "failed", number) if selection.takes(row)]
                rows = await _matching(engine, rows, selection.selector)
                if engine.state.queues.get(queue.name) is not queue:
                    break
                rows = rows[: limit - archived] if limit else rows
                if rows:
                    engine.commits.check_room(_ROW_BYTES * (len(rows) + 4))
                    flat = [field for row in rows for field in row]
                    engine.commits.apply(ArchiveFailed(queue.name, number, flat))
                    engine.commits.needs_sync = True
                    archived += len(rows)
            finally:
                log.at_hand.clear()
        if not go_on(archived) or 0 < limit <= archived:
            break
    return archived


async def _matching(engine: Engine, rows: list[SettledRow], selector: Selector | None) -> list[SettledRow]:
    """Those of the rows whose messages' headers the selector is true of."""
    if selector is None:
        return rows
    found = await stored_messages.read_metadata(engine.store, engine.payloads, [row[0] for row in rows])
    return [row for row in rows if row[0] in found and selector.matches(found[row[0]].headers)]


# ---------------------------------------------------------------------- settled → gone
async def delete(engine: Engine, queue: Queue, which: Which, selection: Selection, go_on: Callable[[int], bool]) -> int:
    """Delete settled messages of a queue; returns how many. Those that no other queue has are collected.

    Args:
        go_on: told how many so far after each step; whether to go on.

    Raises:
        StoreFull: the journal takes no more now; what was deleted is deleted.
        CorruptRecord, StoreError: the store can't be read.
    """
    log, deleted = moves.settled_log(queue, which), 0
    for number in range(log.first, log.tail + 1):
        async with engine.commits.checkpointing:
            try:
                await bring(engine, queue, which, number)
                if engine.state.queues.get(queue.name) is not queue:
                    break
                rows = rows_at_hand(queue, which, number)
                ids = [row[0] for row in rows if selection.takes(row)]
                if ids:
                    engine.commits.check_room(_ROW_BYTES * (len(ids) + 4))
                    _apply(engine, queue, which, number, ids, "", [])
                    for id in ids:
                        engine.payloads.drop(id)
                    deleted += len(ids)
            finally:
                log.at_hand.clear()
        rest_is_younger = rows and selection.before_ms is not None and rows[-1][1] >= selection.before_ms
        if not go_on(deleted) or (rest_is_younger and which != "archived_failed"):  # that is in the order of archiving
            break
        if len(engine.state.dirty.garbage) >= _GARBAGE_PER_CHECKPOINT:
            await engine.commits.checkpoint()
    return deleted
