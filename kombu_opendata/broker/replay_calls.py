"""The calls about replay, redrive and the deletion of settled messages; the long ones are answered at their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import PreconditionFailed, RequestError
from ..protocol import messages as m
from ..selectors import Selector, compile_selector
from ..storage import settled_moves
from ..storage.moves import Which, which_list
from ..storage.settled_moves import Selection
from . import starts
from .model.queue import BrokerQueue
from .replay import room

if TYPE_CHECKING:
    from .handlers import Handlers

#: message ids that one call names
MAX_IDS = 100_000
_MAX_AGE_MS = 1 << 53


# ---------------------------------------------------------------------- the calls
def cursors(self: Handlers, msg: m.Cursors) -> None:
    for name in msg.queues:
        self._queue(name)
    names = msg.queues or list(self.engine.state.cursors)
    found = [self.instance.replays.report(name) for name in names]
    self.instance.outbox.reply(self.session, m.CursorList(msg.rid, [report for report in found if report is not None]))


def replay(self: Handlers, msg: m.Replay) -> None:
    queue, replays = _stored(self, msg.queue), self.instance.replays
    if msg.stop:
        if not self.engine.router.stop(queue.state()):
            raise PreconditionFailed(f"queue {queue.name!r} is not being filled: nothing to stop", queue=queue.name)
    else:
        _selector(msg.selector)
        now = self.engine.clock.now_ms()
        cursor = starts.cursor(
            msg.start, msg.until, next_id=self.engine.state.next_id, now_ms=now, again=True, selector=msg.selector
        )
        replays.start(queue.state(), cursor)
    self.instance.outbox.reply(self.session, m.ReplayStarted(msg.rid, replays.report(queue.name) or {}))


def redrive(self: Handlers, msg: m.Redrive) -> None:
    source = _stored(self, msg.queue)
    target = _stored(self, msg.target) if msg.target else source
    _check_limit(msg.limit)
    which = which_list(msg.which)
    if which == "done":
        raise RequestError("what is done is not redriven: replay it")
    selection = Selection(_ids(msg.ids), _selector(msg.selector), None, msg.limit)
    self.instance.background.run(self.session, msg.rid, _redrive(self, msg.rid, source, target, selection, which))


async def _redrive(
    self: Handlers, rid: int, source: BrokerQueue, target: BrokerQueue, selection: Selection, which: Which
) -> m.Redriven:
    """Until all are moved, or the connection is gone."""
    session, connection = self.session, self.session.connection

    def on_step(done: settled_moves.Redriven) -> bool:
        self.instance.replays.added(target, done.ids)
        return session.connection is connection and not target.deleting and not source.deleting

    work = settled_moves.Redrive(
        self.engine, source.state(), target.state(), selection, room(target, always=True), on_step, which
    )
    done = await work.run()
    return m.Redriven(rid, done.moved, done.already, done.expired, done.waiting, done.is_full)


def delete_settled(self: Handlers, msg: m.DeleteSettled) -> None:
    queue = _stored(self, msg.queue)
    which_list(msg.which)
    before = _before(self, msg.older_than_ms)
    if (msg.older_than_ms >= 0) + (msg.ids is not None) + msg.all != 1:
        raise RequestError("say which messages go by one of: an age (older than), ids, all")
    work = _delete_settled(self, msg, queue, Selection(_ids(msg.ids), None, before))
    self.instance.background.run(self.session, msg.rid, work)


async def _delete_settled(
    self: Handlers, msg: m.DeleteSettled, queue: BrokerQueue, selection: Selection
) -> m.SettledDeleted:
    """Until all are gone, or the connection is."""
    session, connection = self.session, self.session.connection

    def go_on(_deleted: int) -> bool:
        self.instance.outbox.schedule()
        return session.connection is connection and not queue.deleting

    which = which_list(msg.which)
    return m.SettledDeleted(msg.rid, await settled_moves.delete(self.engine, queue.state(), which, selection, go_on))


def archive_failed(self: Handlers, msg: m.ArchiveFailed) -> None:
    queue = _stored(self, msg.queue)
    _check_limit(msg.limit)
    before = _before(self, msg.older_than_ms)
    selection = Selection(_ids(msg.ids), _selector(msg.selector), before, msg.limit)
    self.instance.background.run(self.session, msg.rid, _archive_failed(self, msg.rid, queue, selection))


async def _archive_failed(self: Handlers, rid: int, queue: BrokerQueue, selection: Selection) -> m.Count:
    """Until all are archived, or the connection is gone."""
    session, connection = self.session, self.session.connection

    def go_on(_archived: int) -> bool:
        self.instance.outbox.schedule()
        return session.connection is connection and not queue.deleting

    return m.Count(rid, await settled_moves.archive_failed(self.engine, queue.state(), selection, go_on))


# ---------------------------------------------------------------------- checking
def _stored(self: Handlers, name: str) -> BrokerQueue:
    """A queue that has a log.

    Raises:
        NotFound: there is no such queue.
        RequestError: it is not stored.
    """
    queue = self._queue(name)
    queue.state()
    return queue


def _check_limit(limit: int) -> None:
    if limit < 0:
        raise RequestError(f"a limit of {limit}: give how many messages at most, or 0 for all", limit=limit)


def _before(self: Handlers, age_ms: int) -> int | None:
    """Before when something was settled that is at least so old; None for an age of -1, which is any."""
    if not -1 <= age_ms <= _MAX_AGE_MS:
        raise RequestError(f"an age of {age_ms} ms is out of range", value=age_ms)
    return self.engine.clock.now_ms() - age_ms + 1 if age_ms >= 0 else None


def _selector(text: str) -> Selector | None:
    return compile_selector(text) if text else None


def _ids(ids: list[int] | None) -> frozenset[int] | None:
    if ids is not None and len(ids) > MAX_IDS:
        raise RequestError(f"{len(ids)} message ids: name at most {MAX_IDS} at a time", limit=MAX_IDS)
    return None if ids is None else frozenset(ids)


HANDLERS: dict[type, Callable[[Any, Any], None]] = {
    m.Cursors: cursors, m.Replay: replay, m.Redrive: redrive, m.DeleteSettled: delete_settled,
    m.ArchiveFailed: archive_failed,
}  # fmt: skip
