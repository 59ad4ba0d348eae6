"""Calls that alter, pause and resume queues."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import PreconditionFailed
from ...protocol import messages as m
from ...protocol.permissions import ALL_EXCHANGES, check_alteration
from ...storage.clock import Clock
from ...storage.records.definitions import DELIVERIES, PUBLISHES
from ..delivery.queue_policies import QueuePolicies
from ..delivery.queues import Queues
from ..instance.queue_alterations import Alteration, AlteredMessages, Wanted, alteration
from ..model.queue import BrokerQueue
from .dispatch.context import Context
from .dispatch.registry import handles


@dataclass(frozen=True, slots=True)
class AlterCalls:
    """The calls by which operators control queues."""

    _queues: Queues
    _upkeep: QueuePolicies
    _messages: AlteredMessages
    _clock: Clock
    _altering: asyncio.Lock = field(default_factory=asyncio.Lock)

    @handles(m.AlterQueue)
    async def alter_queue(self, call: Context, msg: m.AlterQueue) -> m.QueueAltered:
        request = Wanted(msg.arguments, msg.unset, msg.reset)
        async with self._altering:
            queue = call.queue(msg.queue)
            after = alteration(queue, request)
            check_alteration(call.session.rights, queue.name, queue.effective, after.effective)
            if not call.session.rights.permits_all:
                self._queues.check_filter(queue.creator, queue.name, after.effective)
            read = call.session.rights.read
            findings = await self._messages.find(queue, after, is_read=read[queue.name] or read[ALL_EXCHANGES])
            call.check_exists(queue)
            after = alteration(queue, request)  # it may have been paused or resumed during the count
            if findings.lost and not msg.force:
                raise PreconditionFailed(
                    f"queue {queue.name!r}: nothing was changed, because {'; '.join(findings.notes)}: use force "
                    "(--force) to go ahead",
                    queue=queue.name,
                    **findings.counts,
                )
            before = queue.effective
            if not msg.dry_run and queue.overrides != after.overrides:
                self._alter(call, queue, after)
            return m.QueueAltered(
                msg.rid, queue.properties.arguments, dict(after.overrides.arguments), before, after.effective,
                findings.counts, findings.notes,
            )  # fmt: skip

    def _alter(self, call: Context, queue: BrokerQueue, after: Alteration) -> None:
        text = _changes(queue.effective, after.effective)
        queue.override(after.overrides, after.parsed)
        queue.used_at_ms = self._clock.now_ms()
        self._upkeep.altered(queue)
        self._queues.wake(queue)
        call.audit("altered queue %r: %s", queue.name, text, queue=queue.name)

    @handles(m.PauseQueue)
    def pause_queue(self, call: Context, msg: m.PauseQueue) -> None:
        queue = call.queue(msg.queue)
        self._pause(call, msg.rid, queue, queue.overrides.paused | DELIVERIES | PUBLISHES * msg.publishes)

    @handles(m.ResumeQueue)
    def resume_queue(self, call: Context, msg: m.ResumeQueue) -> None:
        queue = call.queue(msg.queue)
        self._pause(call, msg.rid, queue, queue.overrides.paused & DELIVERIES * msg.publishes_only)

    def _pause(self, call: Context, rid: int, queue: BrokerQueue, paused: int) -> None:
        before = queue.overrides
        if paused != before.paused:
            since = (before.paused_at_ms or self._clock.now_ms()) if paused else 0
            queue.override(before._replace(paused=paused, paused_at_ms=since), queue.arguments)
            queue.used_at_ms = self._clock.now_ms()
            what = {0: "resumed", DELIVERIES: "paused"}.get(paused, "paused, with its publishes,")
            call.audit("%s queue %r", what, queue.name, queue=queue.name)
            self._queues.wake(queue)
        since_ms, changed = queue.overrides.paused_at_ms, paused != before.paused
        call.answer_once(rid, m.QueuePauseReply(rid, queue.is_paused, queue.refuses_publishes, since_ms, changed))


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return the arguments that change, for the audit log."""
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return ", ".join(f"{name} from {before.get(name)!r} to {after.get(name)!r}" for name in names) or "no value differs"
