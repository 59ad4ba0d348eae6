"""Redrive: moves failed or archived messages back to available, in the same queue or another one.

Each step is one effect, so an interruption leaves every message in exactly one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ..clock import Clock
from ..commit.commits import Commits
from ..effects.message_moves import MoveSettled
from ..messages.payloads import Payloads
from ..read.membership import Membership
from ..read.settled_buckets import SettledBuckets
from ..read.stored_messages import after_lease, measure, place, priority_of, read_metadata, row_of
from ..records import settled
from ..records.metadata import Metadata
from ..slatedb.store_writer import SlateStore
from ..state.queue_buckets import QueueRow
from ..state.settled_list import ListName
from ..state.store_state import Queue, StoreState
from .archive_and_delete import ROW_BYTES, Selection

#: messages that one step moves
_STEP = 256
#: messages whose membership in the target is read at once
_WINDOW = 16_384


@dataclass(slots=True)
class Redriven:
    """The outcome of a redrive.

    Attributes:
        ids: the messages that the target got in the last step.
        moved: how many it got in all.
        already: how many stayed because the target has them.
        expired: how many stayed because they are past their deadline.
        waiting: how many stayed because they are dead letters that are not published yet.
        is_full: whether the target accepts no more.
    """

    ids: list[int] = field(default_factory=list)
    moved: int = 0
    already: int = 0
    expired: int = 0
    waiting: int = 0
    is_full: bool = False


#: called after each step; returns whether to continue
OnStep = Callable[[Redriven], bool]


class _Redrive(NamedTuple):
    """One call, and its outcome so far."""

    source: Queue
    target: Queue
    selection: Selection
    accepts: Callable[[int, int], bool]
    on_step: OnStep
    which: ListName
    done: Redriven


@dataclass(frozen=True, slots=True)
class Redrives:
    """Moves failed or archived messages of one instance's queues back to available."""

    _store: SlateStore
    _state: StoreState
    _clock: Clock
    _commits: Commits
    _payloads: Payloads
    _buckets: SettledBuckets

    async def run(
        self,
        source: Queue,
        target: Queue,
        selection: Selection,
        accepts: Callable[[int, int], bool],
        on_step: OnStep,
        which: ListName = "failed",
    ) -> Redriven:
        """Move messages of one of the settled lists of ``source`` to ``target``, which may be the same queue.

        Messages that come into the list meanwhile are left out.

        Args:
            accepts: whether the target accepts this number of messages with this number of bytes in all.
            on_step: called after each step; returns whether to continue.

        Raises:
            StoreFull: the journal is full; messages that were moved before stay so.
            CorruptRecord, StoreError: the store can't be read.
        """
        call = _Redrive(source, target, selection, accepts, on_step, which, Redriven())
        log = source.settled_list(which)
        last = log.tail
        if self._commits.is_dirty:
            # new messages have their metadata and size in the store only after it
            await self._commits.checkpoint()
        number = log.first
        while number <= last and self._is_alive(call):
            numbered: list[tuple[int, list[settled.Entry]]] = []
            ids: set[int] = set()
            while number <= last and len(ids) < _WINDOW:
                rows = [row for row in await self._buckets.read(source, which, number) if selection.takes(row)]
                numbered.append((number, rows))
                ids.update(row.message_id for row in rows)
                number += 1
            if not await self._window(call, numbered, ids):
                break
        return call.done

    def _is_alive(self, call: _Redrive) -> bool:
        queues = self._state.queues
        return queues.get(call.source.name) is call.source and queues.get(call.target.name) is call.target

    async def _window(self, call: _Redrive, numbered: list[tuple[int, list[settled.Entry]]], ids: set[int]) -> bool:
        """Move the messages of some buckets; returns whether to continue."""
        there = None
        if call.source is not call.target and ids:
            there = await Membership.of(self._store, self._commits, call.target, ids)
        try:
            for number, rows in numbered:
                for part in _parts(rows, _STEP):
                    found = await read_metadata(self._store, self._payloads, [row.message_id for row in part])
                    if not await self._step(call, number, found, there):
                        return False
            return True
        finally:
            if there is not None:
                there.detach()

    async def _step(self, call: _Redrive, number: int, found: dict[int, Metadata], there: Membership | None) -> bool:
        selector = call.selection.selector
        chosen = [message for message in found.values() if selector is None or selector.matches(message.headers)]
        chosen.sort(key=lambda message: message.message_id)
        rows = self._rows(call, chosen, there)
        await measure(self._store, call.target, rows)
        buckets = self._buckets
        async with buckets.settled_down(rows), buckets.hold(call.source, call.which, number) as held:
            if not self._is_alive(call):
                return False
            present = {row.message_id for row in held}
            self._move(call, number, [row for row in rows if row.id in present and not (there and row.id in there)])
        limit = call.selection.limit
        return call.on_step(call.done) and not call.done.is_full and not 0 < limit <= call.done.moved

    def _rows(self, call: _Redrive, chosen: list[Metadata], there: Membership | None) -> list[QueueRow]:
        """The target's rows for the messages that can be moved."""
        at, letters, done = self._clock.now_ms(), self._state.dead_letters, call.done
        rows = []
        for message in chosen:
            if there is not None and message.message_id in there:
                done.already += 1
                continue
            if (call.source.name, message.message_id) in letters:
                done.waiting += 1
                continue
            row = row_of(message, priority_of(message.headers), call.target, at)
            if row is None:
                done.expired += 1
                continue
            after_lease(row, at)
            rows.append(row)
        return rows

    def _move(self, call: _Redrive, number: int, rows: list[QueueRow]) -> None:
        """One effect: out of the list, into the target."""
        done, limit = call.done, call.selection.limit
        size, fitting = 0, 0
        for row in rows:
            size += row.size
            if 0 < limit <= done.moved + fitting:
                break
            if not call.accepts(fitting + 1, size):
                done.is_full = True
                break
            fitting += 1
        rows = rows[:fitting]
        done.ids = [row.id for row in rows]
        if not rows:
            return
        self._commits.check_room(ROW_BYTES * (len(rows) + 4))
        place(call.target, rows)
        source, target, at = call.source.name, call.target.name, self._clock.now_ms()
        self._commits.apply(MoveSettled(source, at, call.which, number, done.ids, target, rows))
        self._commits.needs_sync = True
        done.moved += len(rows)


def _parts(rows: list[settled.Entry], size: int) -> Iterator[list[settled.Entry]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
