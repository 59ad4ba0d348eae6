"""Calls that replay the message log into queues, and list the progress."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import PreconditionFailed
from ...protocol import messages as m
from ...selectors import Selector, compile_selector
from ...storage.clock import Clock
from ...storage.maintain.background_router import Router
from ...storage.state.store_state import StoreState
from ..instance.replay_scheduler import ReplayScheduler
from ..model import log_positions
from ..model.queue import BrokerQueue
from .dispatch.context import Context
from .dispatch.registry import handles


@dataclass(frozen=True, slots=True)
class ReplayCalls:
    """The calls about replays."""

    _replays: ReplayScheduler
    _router: Router
    _state: StoreState
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
            cursor = log_positions.cursor(
                msg.start, msg.until, next_id=self._state.next_id, now_ms=now, again=True, selector=msg.selector
            )
            replays.start(queue.state(), cursor)
            call.audit("began a replay into queue %r", queue.name, queue=queue.name)
        call.reply(m.ReplayStarted(msg.rid, replays.report(queue.name) or {}))


def stored_queue(call: Context, name: str) -> BrokerQueue:
    """Return a queue whose messages are stored.

    Raises:
        NotFound: there is no such queue.
        RequestError: its messages are not stored.
    """
    queue = call.queue(name)
    queue.state()
    return queue


def selector_of(text: str) -> Selector | None:
    """Return the selector of a call; None for an empty text.

    Raises:
        SelectorError: the selector is not valid.
    """
    return compile_selector(text) if text else None
