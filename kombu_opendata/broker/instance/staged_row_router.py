"""Bulk routing of a staged job's rows: finds their queues, and adds them there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from ...errors import InvalidMessage, NotFound, QueueFull, QueuePaused
from ...protocol.envelope import broker_headers, headers_of
from ...staging.batch_block import MAX_HEADERS, IndexBlock, value_at
from ...staging.batch_reader import InlineBlock
from ...storage.effects.staged_jobs import StagedChunk
from ...storage.operations.staged_jobs import Staging
from ...storage.routing.topology import Topology
from ..delivery.instance_core import Core
from ..delivery.queue_policies import QueuePolicies, full_text
from ..delivery.rate_limited_log import WarnOnce
from ..model.queue import BrokerQueue
from ..model.stored_queue import stored_in
from ..model.transient_queue import TransientQueue

log = logging.getLogger(__name__)


class NeedEnvelopes(Exception):
    """A filter, a headers exchange or a transient queue needs the envelopes: the index is not sufficient."""


class RoutingPlan(NamedTuple):
    """Targets of rows. ``runs`` is a flat list of target, rows, target, rows …; target -1 means no queue."""

    targets: list[list[BrokerQueue]]
    runs: list[int]
    envelopes: list[bytes]  # of all rows, if needed
    full: BrokerQueue | None = None  # the queue that refuses the next row


class Planner:
    """Routing of rows for one instance."""

    def __init__(self, core: Core, topology: Topology, staging: Staging, policies: QueuePolicies) -> None:
        self._topology, self._staging, self._queues = topology, staging, core.queues
        self._policies, self._outbox = policies, core.outbox
        self._warn = WarnOnce(log).warn
        self.routed = self.unroutable = 0  # numbers of rows, since startup

    # ------------------------------------------------------------------ planning
    def plan_all(self, blocks: list[InlineBlock]) -> list[RoutingPlan]:
        """Plan all rows of these blocks; raise QueueFull, QueuePaused if a queue refuses some of them."""
        planned_sizes: dict[BrokerQueue, list[int]] = {}
        plans = []
        for _encoded, block, payload in blocks:
            plan, count = self.plan(block, payload, planned_sizes)
            if count < block.rows:
                assert plan.full is not None
                plan.full.check_open()
                raise QueueFull(
                    f"{full_text(plan.full)} and refuses some of the job's messages: nothing was stored; commit again "
                    "when it is shorter",
                    queue=plan.full.name,
                )
            plans.append(plan)
        return plans

    def plan(
        self, block: IndexBlock, payload: bytes | None, held: dict[BrokerQueue, list[int]]
    ) -> tuple[RoutingPlan, int]:
        """Plan rows; return the number of planned rows, which is lower if a full queue refuses the next row.

        ``held`` has the messages and bytes that are already planned for bounded queues. Raise NeedEnvelopes if the
        rows' envelopes (``payload``) must be read first.
        """
        if payload is None and self._topology.filters:  # the writer of a batch may have falsified headers in its index
            raise NeedEnvelopes
        envelopes = _split(block, payload) if payload is not None else []
        numbers: dict[tuple[str, ...], int] = {}
        targets: list[list[BrokerQueue]] = []
        runs: list[int] = []
        refusing_queues: dict[int, list[BrokerQueue]] = {}
        fixed = self._fixed_names(block)
        count = block.rows
        for row in range(count):
            names = self._names(block, row, envelopes) if fixed is None else fixed
            number = numbers.get(names)
            if number is None:
                queues = self._queues.existing(names)
                number = numbers[names] = len(targets) if queues else -1
                if queues:
                    targets.append(queues)
                if not envelopes and any(isinstance(queue, TransientQueue) for queue in queues):
                    raise NeedEnvelopes
                if refuse := [queue for queue in queues if queue.arguments.rejects or queue.refuses_publishes]:
                    refusing_queues[number] = refuse
            full = self._take(refusing_queues[number], block.lengths[row], held) if number in refusing_queues else None
            if full is not None:
                return RoutingPlan(targets, runs, envelopes, full), row
            if fixed is not None and not refusing_queues:
                return RoutingPlan(targets, [number, count], envelopes), count
            _add_run(runs, number, 1)
        return RoutingPlan(targets, runs, envelopes), count

    def _take(self, refusing: list[BrokerQueue], size: int, held: dict[BrokerQueue, list[int]]) -> BrokerQueue | None:
        """Plan one more message for these queues; return the first queue that refuses it, or None."""
        for queue in refusing:
            messages, size_held = held.setdefault(queue, [0, 0])
            try:
                queue.check_open()
                self._policies.check_room(queue, size_held + size, messages + 1)
            except (QueueFull, QueuePaused):
                return queue
        for queue in refusing:
            held[queue][0] += 1
            held[queue][1] += size
        return None

    def _fixed_names(self, block: IndexBlock) -> tuple[str, ...] | None:
        """Return the queues for all messages of a block; None if they depend on the message."""
        exchange, key = block.exchange, block.routing_key
        if isinstance(exchange, str) and isinstance(key, str):
            return self._topology.route_by_key(exchange, key)
        return None

    def _names(self, block: IndexBlock, row: int, envelopes: list[bytes]) -> tuple[str, ...]:
        """Return the queues for a message."""
        exchange, key = value_at(block.exchange, row), value_at(block.routing_key, row)
        try:
            topology = self._topology
            metadata = block.headers_of(row) if topology.filters else None
            return topology.route(exchange, key, _headers(row, envelopes), metadata)
        except NotFound:
            self._warn("messages of staged jobs are dropped: there is no exchange %r", exchange)
            return ()

    # ------------------------------------------------------------------ adding to queues
    def apply(self, chunk: StagedChunk, block: IndexBlock, plan: RoutingPlan) -> None:
        """Add a chunk's rows to their queues in one effect, or raise StoreFull."""
        stored = list(map(stored_in, plan.targets))
        numbers: list[int] = []
        runs: list[int] = []
        for queues in stored:
            numbers.append(len(numbers) if queues else -1)
        for target, count in zip(plan.runs[::2], plan.runs[1::2], strict=True):
            _add_run(runs, numbers[target] if target >= 0 else -1, count)
        self._staging.route(chunk, block, stored, runs)
        self.routed += chunk.rows
        id = chunk.first_id
        for target, count in zip(plan.runs[::2], plan.runs[1::2], strict=True):
            if target < 0:
                self.unroutable += count
            else:
                self._added(plan.targets[target], range(id, id + count), chunk, block, plan)
            id += count
        self._outbox.schedule()

    def _added(
        self, queues: list[BrokerQueue], ids: range, chunk: StagedChunk, block: IndexBlock, plan: RoutingPlan
    ) -> None:
        for queue in queues:
            if not isinstance(queue, TransientQueue):
                continue
            for id in ids:
                row = id - chunk.first_id
                priority, visible, ttl = (value_at(v, row) for v in (block.priority, block.visible_at_ms, block.ttl_ms))
                queue.put(id, plan.envelopes[row], 255 - priority, visible, ttl)
        for each in queues:
            self._queues.wake(each)
            if each.is_bounded or each.messages.next_deadline:
                for id in ids:
                    self._policies.added(each, id, is_late=value_at(block.ttl_ms, id - chunk.first_id) > 0)


def _add_run(runs: list[int], target: int, count: int) -> None:
    if runs and runs[-2] == target:
        runs[-1] += count
    else:
        runs += target, count


def with_broker_headers(block: IndexBlock, payload: bytes) -> IndexBlock:
    """Return a block whose metadata headers are those of its envelopes; the same block if they are equal already.

    Raise InvalidMessage if the headers of the envelopes can't be stored.
    """
    rows: list[dict[str, str]] = []
    for row, envelope in enumerate(_split(block, payload)):
        fields = block.exchange, block.routing_key, block.priority
        exchange, key, priority = (value_at(value, row) for value in fields)
        # any exchange and routing key are permitted, as the envelopes in a batch object can't be changed
        rows.append(broker_headers(envelope, exchange, key, priority, lambda _exchange, _key: True)[0])
    if all(headers == block.headers_of(row) for row, headers in enumerate(rows)):
        return block
    names = dict.fromkeys(name for headers in rows for name in headers)
    if len(names) > MAX_HEADERS:
        text = f"the rows of a batch have {len(names)} different headers; the limit is {MAX_HEADERS}"
        raise InvalidMessage(text, count=len(names), limit=MAX_HEADERS)
    return replace(block, constants={}, columns={name: [headers.get(name) for headers in rows] for name in names})


def _split(block: IndexBlock, payload: bytes) -> list[bytes]:
    envelopes = []
    at = 0
    for length in block.lengths:
        envelopes.append(payload[at : at + length])
        at += length
    return envelopes


def _headers(row: int, envelopes: list[bytes]) -> Callable[[], Mapping[Any, Any]]:
    """Return a function that returns the headers for a headers exchange."""

    def headers() -> Mapping[Any, Any]:
        if not envelopes:
            raise NeedEnvelopes
        return headers_of(envelopes[row]) or {}

    return headers
