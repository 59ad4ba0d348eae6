"""Settled messages: redriven, archived, deleted; answered when that is done."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import RequestError
from ...protocol import messages as m
from ...storage.clock import Clock
from ...storage.operations.archive_and_delete import Selection, SettledMoves
from ...storage.operations.redrive import Redriven, Redrives
from ...storage.state.settled_list import ListName, list_name
from ..delivery.outbox import Outbox
from ..instance.replay_cursors import Replays, room
from ..model.queue import BrokerQueue
from .context import Context
from .registry import handles
from .replay_calls import selector_of, stored_queue

#: message ids that one call names
MAX_IDS = 100_000
_MAX_AGE_MS = 1 << 53


class SettledCalls:
    """Moves, archives or deletes settled messages."""

    def __init__(
        self, redrives: Redrives, settled_moves: SettledMoves, replays: Replays, clock: Clock, outbox: Outbox
    ) -> None:
        self._redrives = redrives
        self._settled_moves = settled_moves
        self._replays = replays
        self._clock = clock
        self._outbox = outbox

    def _filter_of(self, msg: m.Redrive) -> str:
        return msg.selector

    @handles(m.Redrive, query=True, filter_of=_filter_of)
    def redrive(self, call: Context, msg: m.Redrive) -> None:
        source = stored_queue(call, msg.queue)
        target = stored_queue(call, msg.target) if msg.target else source
        _check_limit(msg.limit)
        which = list_name(msg.which)
        if which == "done":
            raise RequestError("what is done is not redriven: replay it")
        selection = Selection(_ids(msg.ids), selector_of(msg.selector), None, msg.limit)
        call.run(msg.rid, self._redrive(call, msg.rid, source, target, selection, which))

    async def _redrive(
        self, call: Context, rid: int, source: BrokerQueue, target: BrokerQueue, selection: Selection, which: ListName
    ) -> m.Redriven:
        """Until all are moved, or the connection is gone."""
        session, connection = call.session, call.session.connection

        def on_step(done: Redriven) -> bool:
            self._replays.added(target, done.ids)
            return session.connection is connection and not target.deleting and not source.deleting

        done = await self._redrives.run(
            source.state(), target.state(), selection, room(target, always=True), on_step, which
        )
        return m.Redriven(rid, done.moved, done.already, done.expired, done.waiting, done.is_full)

    @handles(m.DeleteSettled, query=True)
    def delete_settled(self, call: Context, msg: m.DeleteSettled) -> None:
        queue = stored_queue(call, msg.queue)
        list_name(msg.which)
        before = self._before(msg.older_than_ms)
        if (msg.older_than_ms >= 0) + (msg.ids is not None) + msg.all != 1:
            raise RequestError("say which messages go by one of: an age (older than), ids, all")
        work = self._delete_settled(call, msg, queue, Selection(_ids(msg.ids), None, before))
        call.run(msg.rid, work)

    async def _delete_settled(
        self, call: Context, msg: m.DeleteSettled, queue: BrokerQueue, selection: Selection
    ) -> m.SettledDeleted:
        """Until all are gone, or the connection is."""
        which, go_on = list_name(msg.which), self._go_on(call, queue)
        deleted = await self._settled_moves.delete(queue.state(), which, selection, go_on)
        return m.SettledDeleted(msg.rid, deleted)

    @handles(m.ArchiveFailed, query=True)
    def archive_failed(self, call: Context, msg: m.ArchiveFailed) -> None:
        queue = stored_queue(call, msg.queue)
        _check_limit(msg.limit)
        before = self._before(msg.older_than_ms)
        selection = Selection(_ids(msg.ids), selector_of(msg.selector), before, msg.limit)
        call.run(msg.rid, self._archive_failed(call, msg.rid, queue, selection))

    async def _archive_failed(self, call: Context, rid: int, queue: BrokerQueue, selection: Selection) -> m.Count:
        """Until all are archived, or the connection is gone."""
        go_on = self._go_on(call, queue)
        return m.Count(rid, await self._settled_moves.archive_failed(queue.state(), selection, go_on))

    def _go_on(self, call: Context, queue: BrokerQueue) -> Callable[[int], bool]:
        """Commits each step; says whether the client still waits, and the queue is not being deleted."""
        session, connection = call.session, call.session.connection

        def go_on(_done: int) -> bool:
            self._outbox.schedule()
            return session.connection is connection and not queue.deleting

        return go_on

    def _before(self, age_ms: int) -> int | None:
        """Before when something was settled that is at least so old; None for an age of -1, which is any."""
        if not -1 <= age_ms <= _MAX_AGE_MS:
            raise RequestError(f"an age of {age_ms} ms is out of range", value=age_ms)
        return self._clock.now_ms() - age_ms + 1 if age_ms >= 0 else None


# ---------------------------------------------------------------------- checking


def _check_limit(limit: int) -> None:
    if limit < 0:
        raise RequestError(f"a limit of {limit}: give how many messages at most, or 0 for all", limit=limit)


def _ids(ids: list[int] | None) -> frozenset[int] | None:
    if ids is not None and len(ids) > MAX_IDS:
        raise RequestError(f"{len(ids)} message ids: name at most {MAX_IDS} at a time", limit=MAX_IDS)
    return None if ids is None else frozenset(ids)
