"""Puts the messages of committed jobs into queues, in the background and in small pieces, as a publish would.

Each job has a cursor, how many of its rows are routed, which is part of the state; so after a crash routing goes on
where it was. Each piece is one effect. Between pieces the event loop does what else there is, and while others publish
or are delivered to, routing takes half of the time at most.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import CorruptRecord, NewerFormat, NotFound, OpenDataError, QueueFull
from ..protocol.envelope import open_envelope
from ..staging import format as fmt
from ..staging.format import Block, Segment, Tail
from ..staging.objects import Folder
from ..staging.reader import read_index, read_tail
from ..storage.staged_rows import Chunk
from ..storage.staged_state import StagedJob, StagedObject
from .entities import BrokerQueue

if TYPE_CHECKING:
    from .instance import Instance

log = logging.getLogger(__name__)

#: jobs that are routed at a time, in turn; the others wait
_JOBS = 4
#: a piece takes so long at most, and has so many rows at least
_PIECE_SECONDS = 0.008
_MIN_ROWS = 16
#: unwritten records after which routing waits for a checkpoint
_MAX_BATCH_BYTES = 8 << 20
_RETRY_SECONDS = 1.0
#: a queue that refuses what is over its maximum is looked at so often
_FULL_SECONDS = 0.05
#: and after so long its job makes room for others, for as long
_PARKED_SECONDS = 0.5
_MAX_LOGGED = 1000


class _NeedEnvelopes(Exception):
    """A headers exchange or a transient queue is among the targets: the index is not enough."""


class _Stuck(Exception):
    """A queue was full for some time: other jobs have their turn."""


class Plan(NamedTuple):
    """Where rows go: ``runs`` is a flat list target, rows, …; -1 for no queue at all."""

    targets: list[list[BrokerQueue]]
    runs: list[int]
    envelopes: list[bytes]  # of all rows of the block, if they are needed


class StagingRouter:
    """The routing of one instance's staged jobs.

    Attributes:
        routed, unroutable, damaged: rows since the start.
        max_message_bytes: of an envelope; a batch with larger ones was made by somebody who does not ask for limits.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._engine = instance.engine
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._turn = asyncio.Lock()
        self.max_message_bytes = 64 << 20
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._parked: dict[str, float] = {}  # jobs that wait for a full queue, and when they are looked at again
        self._piece_rows = 128
        self._others = 0
        self._reported = 0
        self._logged: set[tuple[str, ...]] = set()
        self.routed = self.unroutable = self.damaged = 0

    def wake(self) -> None:
        """There is a new job."""
        self._wanted.set()

    async def routed_since(self) -> int:
        """Rows that were routed since the last call; the duty ``route`` says it."""
        self.wake()
        before, self._reported = self._reported, self.routed
        return self.routed - before

    async def run(self) -> None:
        """Route until cancelled."""
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                now = self._instance.loop.time()
                due = [job for job in self._engine.state.staged.routing() if self._parked.get(job.id, 0.0) <= now]
                for job in sorted(due, key=lambda job: self._parked.get(job.id, 0.0)):  # who never waited is first
                    if len(self._tasks) >= _JOBS:
                        break
                    if job.id not in self._tasks:
                        self._start(job)
        finally:
            for task in self._tasks.values():
                task.cancel()

    def _start(self, job: StagedJob) -> None:
        task = self._tasks[job.id] = self._instance.loop.create_task(self._route_job(job))
        task.add_done_callback(lambda done: self._ended(job.id, done))

    def _ended(self, job_id: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(job_id, None)
        if task.cancelled():
            return
        exc = task.exception()
        if exc is not None:
            log.error("routing job %r failed", job_id, exc_info=exc)
            self._instance.fail(exc)
        self._wanted.set()

    # ------------------------------------------------------------------ a job
    async def _route_job(self, job: StagedJob) -> None:
        while not job.is_routed and self._engine.failure is None:
            try:
                await self._route_object(job)
            except _Stuck:
                self._parked[job.id] = self._instance.loop.time() + _PARKED_SECONDS
                self._instance.loop.call_later(_PARKED_SECONDS, self.wake)
                return
            except OpenDataError as exc:
                if self._engine.failure is not None:
                    return
                self._log("job %r can't be routed now: %s; trying again", job.id, exc)
                await asyncio.sleep(_RETRY_SECONDS)
        self._parked.pop(job.id, None)

    async def _route_object(self, job: StagedJob) -> None:
        """Route what is left of the object that the cursor is in."""
        first_id = job.first_id + job.routed
        found = self._engine.state.staged.object_of(first_id)
        if found is None:
            self._lose(job, job.rows - job.routed, "there is no record of the batch that they are in")
            return
        try:
            folder = self._engine.staging.folder()
            tail = await asyncio.to_thread(_read_same_tail, folder, found)
        except (CorruptRecord, NewerFormat) as exc:
            self._lose(job, found.first_id + found.rows - first_id, exc)
            return
        end_id = found.first_id
        following: asyncio.Task[list[bytes]] | None = None
        try:
            for number, segment in enumerate(tail.segments):
                start_id, end_id = end_id, end_id + segment.rows
                if end_id <= first_id:
                    continue
                reading = following or self._read(folder, found.path, segment)
                following = None
                if number + 1 < len(tail.segments):
                    following = self._read(folder, found.path, tail.segments[number + 1])
                try:
                    await self._route_segment(job, found, segment, await reading, start_id)
                except CorruptRecord as exc:
                    self._lose(job, end_id - job.first_id - job.routed, exc)
        finally:
            if following is not None:
                following.cancel()

    def _read(self, folder: Folder, path: str, segment: Segment) -> asyncio.Task[list[bytes]]:
        """Read an index ahead."""
        reading = self._instance.loop.create_task(asyncio.to_thread(read_index, folder, path, segment))
        reading.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may never be looked at
        return reading

    def _lose(self, job: StagedJob, rows: int, why: object) -> None:
        """Rows that can't be routed, as what the batch says of them is damaged: the others go on."""
        log.error("job %r: %d messages from id %d on are lost: %s", job.id, rows, job.first_id + job.routed, why)
        now = self._engine.clock.now_ms()
        chunk = Chunk(
            job.id, job.first_id + job.routed, now, job.committed_at_ms, "", 0, 0, rows, b"", b""
        )  # fmt: skip
        self._engine.staging.route(chunk, None, [], [-1, rows])
        self.damaged += rows
        self._instance.schedule()

    async def _route_segment(
        self, job: StagedJob, found: StagedObject, segment: Segment, blocks: list[bytes], start_id: int
    ) -> None:
        at = start_id
        end = start_id + segment.rows
        for encoded in blocks:
            next_id = job.first_id + job.routed
            block = fmt.decode_block(encoded, found.path, segment.payload_bytes, self.max_message_bytes)
            at += block.rows
            if at > end:
                break
            if at > next_id:
                offset = segment.payload_offset + block.offset
                await self._route_block(job, found.path, offset, encoded, block, block.rows - (at - next_id))
        if at != end:
            raise fmt.corrupt(
                found.path, segment.index_offset, f"its blocks have {at - start_id} of {segment.rows} rows"
            )

    # ------------------------------------------------------------------ a block
    async def _route_block(
        self, job: StagedJob, path: str, offset: int, encoded: bytes, block: Block, row: int
    ) -> None:
        """Route the rows of a block from ``row`` on, in pieces."""
        payload: bytes | None = None
        clock = self._instance.loop.time
        stuck_at = clock()
        while row < block.rows:
            async with self._turn:
                await self._pace()
                began = clock()
                count = min(block.rows - row, self._piece_rows)
                try:
                    plan, count = self._plan(block, row, count, payload)
                    if count:
                        now = self._engine.clock.now_ms()
                        chunk = Chunk(
                            job.id, job.first_id + job.routed, now, job.committed_at_ms, path, offset, row, count,
                            encoded, b"",
                        )  # fmt: skip
                        self.apply(chunk, block, plan)
                        row += count
                        self._parked.pop(job.id, None)
                        stuck_at = clock()
                        self._adapt(clock() - began, count)
                        await self._yield(clock() - began)
                        continue
                except _NeedEnvelopes:
                    payload = await self._payload(path, offset, block)
                    continue
            if job.id in self._parked or clock() - stuck_at > _PARKED_SECONDS:
                raise _Stuck
            await asyncio.sleep(_FULL_SECONDS)

    async def _payload(self, path: str, offset: int, block: Block) -> bytes:
        """The envelopes of a block. What is damaged shows in their checksums when they are delivered."""
        size = sum(block.lengths)
        (data,) = await asyncio.to_thread(self._engine.staging.folder().read, path, [(offset, size)])
        return data.ljust(size, b"\0")

    async def _pace(self) -> None:
        """Wait until the store can take more."""
        while self._engine.batch.nbytes > _MAX_BATCH_BYTES:
            await self._engine.checkpoint()

    async def _yield(self, seconds: float) -> None:
        """Let others have their turn: as long as this took, if there is something for them to do."""
        others = self._instance.published + self._instance.delivered
        busy, self._others = others != self._others, others
        await asyncio.sleep(seconds if busy else 0)

    def _adapt(self, seconds: float, rows: int) -> None:
        """Make pieces as large as their time allows."""
        fits = int(rows * _PIECE_SECONDS / max(seconds, 1e-6))
        self._piece_rows = max(_MIN_ROWS, min(fits, 2 * self._piece_rows, fmt.BLOCK_ROWS))

    # ------------------------------------------------------------------ where rows go
    def plan_all(self, blocks: list[tuple[Block, bytes]]) -> list[Plan]:
        """Where all rows of these blocks go, which come with their envelopes.

        Raises:
            QueueFull: a queue refuses some of them.
        """
        held: dict[BrokerQueue, list[int]] = {}
        plans = []
        for block, payload in blocks:
            plan, count = self._plan(block, 0, block.rows, payload, held)
            if count < block.rows:
                raise QueueFull(
                    "a queue has reached its maximum length and refuses some of the job's messages: nothing was "
                    "stored; commit again when it is shorter"
                )
            plans.append(plan)
        return plans

    def _plan(
        self,
        block: Block,
        start: int,
        count: int,
        payload: bytes | None,
        held: dict[BrokerQueue, list[int]] | None = None,
    ) -> tuple[Plan, int]:
        """Where rows go, and of how many that can be said: fewer where a queue is full that refuses more.

        Args:
            payload: the block's envelopes, if they were read.
            held: messages and bytes that are planned for bounded queues already.

        Raises:
            _NeedEnvelopes: they must be read first.
        """
        envelopes = _split(block, payload) if payload is not None else []
        numbers: dict[tuple[str, ...], int] = {}
        targets: list[list[BrokerQueue]] = []
        runs: list[int] = []
        refusing: dict[int, list[BrokerQueue]] = {}
        held = {} if held is None else held
        fixed = self._fixed_names(block)
        for row in range(start, start + count):
            names = self._names(block, row, envelopes) if fixed is None else fixed
            number = numbers.get(names)
            if number is None:
                queues = [q for q in map(self._instance.queues.get, names) if q is not None and not q.deleting]
                number = numbers[names] = len(targets) if queues else -1
                if queues:
                    targets.append(queues)
                    if any(queue.arguments.rejects for queue in queues):
                        refusing[number] = [queue for queue in queues if queue.arguments.rejects]
                    if not envelopes and any(queue.stored is None for queue in queues):
                        raise _NeedEnvelopes
            if number in refusing and not self._take(refusing[number], block.lengths[row], held):
                return Plan(targets, runs, envelopes), row - start
            if fixed is not None and not refusing:
                return Plan(targets, [number, count], envelopes), count
            if runs and runs[-2] == number:
                runs[-1] += 1
            else:
                runs += number, 1
        return Plan(targets, runs, envelopes), count

    def _take(self, refusing: list[BrokerQueue], size: int, held: dict[BrokerQueue, list[int]]) -> bool:
        """Whether none of the queues refuses one more message."""
        for queue in refusing:
            messages, size_held = held.setdefault(queue, [0, 0])
            try:
                self._instance.upkeep.check_room(queue, size_held + size, messages + 1)
            except QueueFull:
                return False
        for queue in refusing:
            held[queue][0] += 1
            held[queue][1] += size
        return True

    def _fixed_names(self, block: Block) -> tuple[str, ...] | None:
        """The queues that each message of a block goes to, where that is the same for all."""
        exchange, key = block.exchange, block.routing_key
        if isinstance(exchange, str) and isinstance(key, str):
            return self._engine.state.topology.route_by_key(exchange, key)
        return None

    def _names(self, block: Block, row: int, envelopes: list[bytes]) -> tuple[str, ...]:
        """The queues that a message goes to."""
        exchange, key = block.exchange, block.routing_key
        exchange = exchange if isinstance(exchange, str) else exchange[row]
        key = key if isinstance(key, str) else key[row]
        try:
            topology = self._engine.state.topology
            seen = block.headers_of(row) if topology.filters else None
            return topology.route(exchange, key, _headers(block, row, envelopes), seen)
        except NotFound:
            self._log("messages of staged jobs are dropped: there is no exchange %r", exchange)
            return ()

    # ------------------------------------------------------------------ into the queues
    def apply(self, chunk: Chunk, block: Block, plan: Plan) -> None:
        """Put a chunk's rows where they go. Nothing is awaited: it is one effect.

        Raises:
            StoreFull: nothing happened.
        """
        stored = [[queue.stored for queue in queues if queue.stored is not None] for queues in plan.targets]
        numbers: list[int] = []
        runs: list[int] = []
        for queues in stored:
            numbers.append(len(numbers) if queues else -1)
        for target, count in zip(plan.runs[::2], plan.runs[1::2], strict=True):
            number = numbers[target] if target >= 0 else -1
            if runs and runs[-2] == number:
                runs[-1] += count
            else:
                runs += number, count
        self._engine.staging.route(chunk, block, stored, runs)
        self.routed += chunk.rows
        id = chunk.first_id
        for target, count in zip(plan.runs[::2], plan.runs[1::2], strict=True):
            if target < 0:
                self.unroutable += count
            else:
                for queue in plan.targets[target]:
                    self._added(queue, range(id, id + count), chunk, block, plan)
            id += count
        self._instance.schedule()

    def _added(self, queue: BrokerQueue, ids: range, chunk: Chunk, block: Block, plan: Plan) -> None:
        instance = self._instance
        if queue.stored is None:
            for id in ids:
                row = id - chunk.first_id + chunk.skip
                priority, visible, ttl = (_at(v, row) for v in (block.priority, block.visible_at_ms, block.ttl_ms))
                instance.publish_transient(queue, id, plan.envelopes[row], 255 - priority, visible, ttl)
        instance.wake(queue)
        if queue.is_bounded or queue.messages.next_deadline:
            for id in ids:
                instance.upkeep.added(queue, id, is_late=_at(block.ttl_ms, id - chunk.first_id + chunk.skip) > 0)

    def _log(self, text: str, *values: object) -> None:
        """Warn, once for the same."""
        said = (text, *map(str, values))
        if said not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(said)
            log.warning(text, *values)


def _read_same_tail(folder: Folder, found: StagedObject) -> Tail:
    """The directory of an object, which must be as it was when it was committed."""
    tail = read_tail(folder, found.path, found.bytes)
    if (tail.rows, tail.checksum) != (found.rows, found.checksum):
        raise fmt.corrupt(found.path, found.bytes, "it is not the batch that was committed")
    return tail


def _split(block: Block, payload: bytes) -> list[bytes]:
    envelopes = []
    at = 0
    for length in block.lengths:
        envelopes.append(payload[at : at + length])
        at += length
    return envelopes


def _at(value: Any, row: int) -> int:
    return value[row] if isinstance(value, list) else value  # type: ignore[no-any-return]


def _headers(block: Block, row: int, envelopes: list[bytes]) -> Callable[[], Mapping[Any, Any]]:
    """What a headers exchange matches: the message's own headers, or their texts if it is no envelope."""

    def headers() -> Mapping[Any, Any]:
        if not envelopes:
            raise _NeedEnvelopes
        opened = open_envelope(envelopes[row])
        if opened is not None:
            return opened[3]
        return block.headers_of(row)

    return headers
