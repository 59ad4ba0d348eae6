"""Calls that replay the message log, redrive, archive and delete settled messages, and move and copy ready ones."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import PreconditionFailed, RequestError
from ...protocol import messages as m
from ...selectors import Selector, compile_selector
from ...storage.clock import Clock
from ...storage.maintain.background_router import Router, replay_cursor
from ...storage.operations.archive_and_delete import Selection, SettledMoves
from ...storage.operations.moves import Moves, MoveTarget
from ...storage.operations.repeated_requests import Call
from ...storage.read.queue_pages import AVAILABLE, DELAYED
from ...storage.state.settled_list import list_name
from ...storage.state.store_state import StoreState
from ..delivery.outbox import Outbox
from ..instance.replay_scheduler import ReplayScheduler, room
from ..model.queue import BrokerQueue
from .dispatch import BrokerCalls, Context, check_range, handles

#: maximum number of message ids in one call
MAX_IDS = 100_000
_MAX_AGE_MS = 1 << 53


class ReplayCalls(BrokerCalls):
    """Calls that replay, move, archive or delete messages.

    A call stops when its client disconnects, except for a replay, which runs in the background.
    """

    _replays: ReplayScheduler
    _router: Router
    _state: StoreState
    _moves: Moves
    _settled_moves: SettledMoves
    _outbox: Outbox
    _clock: Clock

    @handles(m.Cursors)
    def cursors(self, call: Context, msg: m.Cursors) -> None:
        for name in msg.queues:
            call.queue(name)
        names = msg.queues or list(filter(call.session.rights.may_watch, self._state.cursors))
        reports = [self._replays.report(name) for name in names]
        call.reply(m.CursorList(msg.rid, [report for report in reports if report is not None]))

    @handles(m.Replay)
    def replay(self, call: Context, msg: m.Replay) -> None:
        queue, replays = stored_queue(call, msg.queue), self._replays
        if msg.stop:
            if not self._router.stop(queue.state()):
                raise PreconditionFailed(f"queue {queue.name!r} has no replay to stop", queue=queue.name)
            call.audit("stopped the replay into queue %r", queue.name, queue=queue.name)
        else:
            selector_of(msg.selector)
            now = self._clock.now_ms()
            cursor = replay_cursor(
                msg.start, msg.until, next_id=self._state.next_id, now_ms=now, again=True, selector=msg.selector
            )
            replays.start(queue.state(), cursor)
            call.audit("began a replay into queue %r", queue.name, queue=queue.name)
        call.reply(m.ReplayStarted(msg.rid, replays.report(queue.name) or {}))

    @handles(m.Redrive)
    async def redrive(self, call: Context, msg: m.Redrive) -> m.Redriven:
        source = stored_queue(call, msg.queue)
        target = stored_queue(call, msg.target) if msg.target else source
        check_limit(msg.limit)
        which = list_name(msg.which)
        if which == "done":
            raise RequestError("messages that are done can't be redriven: use a replay")
        selection = Selection(_ids(msg.ids), selector_of(msg.selector), None, msg.limit)
        way = self._way(call, msg.rid, source, target)
        counts = await self._moves.redrive(source.state(), selection, way, which)
        call.audit("redrove %d messages from %r to %r", counts.count, source.name, target.name, queue=source.name)
        return m.Redriven(
            rid=msg.rid,
            moved=counts.count,
            already=counts.already,
            expired=counts.expired,
            waiting=counts.waiting,
            is_full=counts.is_full,
            unmatched=counts.unmatched,
        )

    @handles(m.MoveMessages)
    async def move_messages(self, call: Context, msg: m.MoveMessages) -> m.Moved:
        source, target = stored_queue(call, msg.queue), stored_queue(call, msg.target)
        if source is target:
            raise RequestError(f"the messages of queue {msg.queue!r} are there already: name another target")
        check_limit(msg.limit)
        if unknown := set(msg.states).difference((AVAILABLE, DELAYED)):
            raise RequestError(f"messages that are {min(unknown)!r} can't be moved: use {AVAILABLE!r} or {DELAYED!r}")
        selection = Selection(_ids(msg.ids), selector_of(msg.selector), None, msg.limit)
        way, states = self._way(call, msg.rid, source, target), msg.states or (AVAILABLE, DELAYED)
        counts = await self._moves.waiting(source.state(), selection, way, states, copies=msg.copy)
        text = "copied %d waiting messages from %r to %r" if msg.copy else "moved %d waiting messages from %r to %r"
        call.audit(text, counts.count, source.name, target.name, queue=source.name)
        counts.rid = msg.rid
        return counts

    def _way(self, call: Context, rid: int, source: BrokerQueue, target: BrokerQueue) -> MoveTarget:
        """Return the target of a move; raise QueuePaused if publishes to it are paused.

        The move ends when the client disconnects or one of the queues is deleted.
        """
        target.check_open()
        session, connection = call.session, call.session.connection

        def on_step(ids: list[int]) -> bool:
            self._replays.added(target, ids)
            return session.connection is connection and not target.deleting and not source.deleting

        return MoveTarget(target.state(), room(target, always=True), on_step, Call(session.id, rid))

    @handles(m.DeleteSettled)
    async def delete_settled(self, call: Context, msg: m.DeleteSettled) -> m.SettledDeleted:
        queue, which = stored_queue(call, msg.queue), list_name(msg.which)
        before = self._before(msg.older_than_ms)
        if (msg.older_than_ms >= 0) + (msg.ids is not None) + msg.all != 1:
            raise RequestError("say which messages to delete by one of: an age (older than), ids, all")
        selection = Selection(_ids(msg.ids), None, before)
        deleted = await self._settled_moves.delete(queue.state(), which, selection, self._go_on(call, queue))
        call.audit("deleted %d %s messages of queue %r", deleted, which, queue.name, queue=queue.name)
        return m.SettledDeleted(msg.rid, deleted)

    @handles(m.ArchiveFailed)
    async def archive_failed(self, call: Context, msg: m.ArchiveFailed) -> m.Count:
        queue = stored_queue(call, msg.queue)
        check_limit(msg.limit)
        selection = Selection(_ids(msg.ids), selector_of(msg.selector), self._before(msg.older_than_ms), msg.limit)
        go_on = self._go_on(call, queue)
        count = await self._settled_moves.archive_failed(queue.state(), selection, go_on)
        call.audit("archived %d failed messages of queue %r", count, queue.name, queue=queue.name)
        return m.Count(msg.rid, count)

    def _go_on(self, call: Context, queue: BrokerQueue) -> Callable[[int], bool]:
        """Return a callback that commits each step, and returns True while the client waits and the queue exists."""
        session, connection = call.session, call.session.connection

        def go_on(_done: int) -> bool:
            self._outbox.schedule()
            return session.connection is connection and not queue.deleting

        return go_on

    def _before(self, age_ms: int) -> int | None:
        """Return the time before which a message of at least this age was settled; None for -1, which means any age."""
        check_range("an age in ms", age_ms, -1, _MAX_AGE_MS)
        return self._clock.now_ms() - age_ms + 1 if age_ms >= 0 else None


def stored_queue(call: Context, name: str) -> BrokerQueue:
    """Return a queue; raise NotFound, or RequestError if its messages are not stored."""
    queue = call.queue(name)
    queue.state()
    return queue


def selector_of(text: str) -> Selector | None:
    """Return the selector of a call; None for an empty text. Raise SelectorError if the selector is not valid."""
    return compile_selector(text) if text else None


def check_limit(limit: int) -> None:
    if limit < 0:
        raise RequestError(f"a limit of {limit} is not valid: give a number of messages, or 0 for all", limit=limit)


def _ids(ids: list[int] | None) -> frozenset[int] | None:
    check_range("the number of message ids", len(ids or ()), 0, MAX_IDS)
    return None if ids is None else frozenset(ids)
