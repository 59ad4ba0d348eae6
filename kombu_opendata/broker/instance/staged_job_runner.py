"""Routing of committed jobs' messages into queues, in the background and in small pieces.

Each job has a cursor: the number of its routed rows. The cursor is part of the stored state, so routing continues at
the cursor after a crash. Each piece is one effect. Between pieces, the event loop runs other work. While clients
publish or receive deliveries, routing uses at most a quarter of the time.

A cancellation sets the cursor to the end while a piece is prepared, so each piece checks the cursor in the turn in
which it is applied.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from functools import partial

from ...errors import CorruptRecord, InvalidMessage, NewerFormat, OpenDataError
from ...protocol.messages import Blocked
from ...staging.batch_block import BLOCK_ROWS, IndexBlock, cut, decode_block, encode_block
from ...staging.batch_format import SegmentEntry, Tail, corrupt
from ...staging.batch_reader import read_envelopes, read_index, read_tail
from ...staging.folder import Folder
from ...storage.effects.staged_jobs import StagedChunk
from ...storage.operations.staged_jobs import Staging
from ...storage.records.staged_jobs import StagedJob, StagedObject
from ..delivery.instance_core import Core
from ..delivery.queue_policies import refusal_text
from ..delivery.rate_limited_log import WarnOnce
from .staged_row_router import NeedEnvelopes, Planner, with_broker_headers

log = logging.getLogger(__name__)

#: maximum number of jobs that are routed at a time, and of jobs with a rate limit; the others wait
_JOBS, _LIMITED_JOBS = 4, 64
#: the maximum duration of a piece, and its minimum number of rows
_PIECE_SECONDS = 0.008
_MIN_ROWS = 16
#: the share of the time that routing uses while clients are active
_BUSY_SHARE = 0.25
#: bytes of unwritten records at which routing waits for a checkpoint
_MAX_BATCH_BYTES = 4 << 20
#: maximum size of the envelopes that are read into memory at a time, unless one is larger
_PAYLOAD_BYTES = 8 << 20
_RETRY_SECONDS = 1.0
#: after this time, a job that waits for its rate limit checks whether it was cancelled
_LIMIT_SECONDS = 0.5
#: how often routing retries a queue that is full and refuses messages
_FULL_SECONDS = 0.05
#: after this time without progress a job yields to others, for the same time
_PARKED_SECONDS = 0.5


class _Stuck(Exception):
    """Queue that was full for some time, so that other jobs have precedence."""


class RateLimit:
    """Token bucket that limits the rows of a job in a second.

    It holds the rows of a tenth of a second, at least one. So the job does not catch up if routing was late, because a
    queue was full or the broker did not run. A piece has the rows of a twentieth of a second, up to 64.
    """

    def __init__(self, rate: float, now: float) -> None:
        self._rate, self._most = rate, max(rate / 10, 1.0)
        self._piece = min(max(rate / 20, 1.0), 64.0)
        self._tokens, self._at = self._piece, now

    def wait(self, now: float) -> float:
        """Return the seconds until the next piece may be routed; 0 means now."""
        self._tokens = min(self._tokens + self._rate * (now - self._at), self._most)
        self._at = now
        return max((self._piece - self._tokens) / self._rate, 0.0)

    @property
    def rows(self) -> int:
        """The number of rows that may be routed now."""
        return int(self._tokens)

    def take(self, rows: int) -> None:
        self._tokens -= rows


class StagingRouter:
    """Routing of one instance's staged jobs. A batch with an envelope above the limit counts as corrupt."""

    def __init__(self, core: Core, planner: Planner, staging: Staging, max_message_bytes: int) -> None:
        self.planner = planner  # finds the queues of rows
        self._staging = staging
        self._jobs = staging.state
        self._commits, self._clock, self._outbox = core.commits, core.clock, core.outbox
        self._failure, self._traffic = core.failure, core.traffic
        self._loop = asyncio.get_running_loop()
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._turn = asyncio.Lock()
        self._max_message_bytes = max_message_bytes
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._limits: dict[str, RateLimit] = {}  # of the jobs that are routed and have a limit
        self._parked: dict[str, float] = {}  # jobs that wait for a full queue, and when they are retried
        self._blocked: dict[str, Blocked] = {}
        self._piece_rows = 128
        self._others = 0
        self._warn = WarnOnce(log).warn
        self.damaged = 0  # the number of corrupt rows, since startup

    def wake(self) -> None:
        """Resume after a job may have been added."""
        self._wanted.set()

    def blocked(self, job_id: str) -> Blocked | None:
        """Return the reason why a job can't be routed now, if there is one."""
        job = self._jobs.jobs.get(job_id)
        return None if job is None or job.is_routed else self._blocked.get(job_id)

    async def run(self) -> None:
        """Route until cancelled."""
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                now = self._loop.time()
                due = [job for job in self._jobs.routing() if self._parked.get(job.id, 0.0) <= now]
                for job in sorted(due, key=lambda job: self._parked.get(job.id, 0.0)):  # new jobs first
                    if job.id in self._tasks:
                        continue
                    if job.rate_limit and len(self._limits) < _LIMITED_JOBS:
                        self._limits[job.id] = RateLimit(job.rate_limit, now)
                    elif job.rate_limit or len(self._tasks) - len(self._limits) >= _JOBS:
                        continue
                    task = self._tasks[job.id] = self._loop.create_task(self._route_job(job))
                    task.add_done_callback(partial(self._ended, job.id))
        finally:
            for task in self._tasks.values():
                task.cancel()

    def _ended(self, job_id: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(job_id, None)
        self._limits.pop(job_id, None)
        if task.cancelled():
            return
        exc = task.exception()
        if exc is not None:
            log.error("routing job %r failed", job_id)
            self._failure.fail(exc)
        self._wanted.set()

    # ------------------------------------------------------------------ a job
    async def _route_job(self, job: StagedJob) -> None:
        while not job.is_routed and self._commits.failure is None:
            try:
                await self._route_object(job)
            except _Stuck:
                self._parked[job.id] = self._loop.time() + _PARKED_SECONDS
                self._loop.call_later(_PARKED_SECONDS, self.wake)
                return
            except OpenDataError as exc:
                if self._commits.failure is not None:
                    return
                self._warn("job %r can't be routed now: %s; trying again", job.id, exc)
                self._block(job, f"the broker has stopped routing: {exc.text}")
                await asyncio.sleep(_RETRY_SECONDS)
        self._parked.pop(job.id, None)
        self._blocked.pop(job.id, None)

    def _block(self, job: StagedJob, reason: str, queue: str = "") -> None:
        previous = self._blocked.get(job.id)
        since_ms = self._clock.now_ms() if previous is None else previous.since_ms
        self._blocked[job.id] = Blocked(reason, since_ms, queue)

    async def _route_object(self, job: StagedJob) -> None:
        """Route the remaining rows of the object at the cursor."""
        first_id = job.first_id + job.routed
        staged = self._jobs.object_of(first_id)
        if staged is None:
            self._lose(job, job.rows - job.routed, "there is no record of their batch")
            return
        try:
            folder = self._staging.folder.open()
            tail = await asyncio.to_thread(_read_same_tail, folder, staged)
        except (CorruptRecord, NewerFormat) as exc:
            self._lose(job, staged.first_id + staged.rows - first_id, exc)
            return
        end_id = staged.first_id
        next_read: asyncio.Task[list[bytes]] | None = None
        try:
            for number, segment in enumerate(tail.segments):
                start_id, end_id = end_id, end_id + segment.rows
                if end_id <= first_id:
                    continue
                if job.is_routed:
                    return
                reading = next_read or self._read(folder, staged.path, segment, tail.version)
                next_read = None
                if number + 1 < len(tail.segments):
                    next_read = self._read(folder, staged.path, tail.segments[number + 1], tail.version)
                try:
                    await self._route_segment(job, staged, segment, await reading, start_id)
                except CorruptRecord as exc:
                    self._lose(job, end_id - job.first_id - job.routed, exc)
        finally:
            if next_read is not None:
                next_read.cancel()

    def _read(self, folder: Folder, path: str, segment: SegmentEntry, version: int) -> asyncio.Task[list[bytes]]:
        """Start reading an index ahead."""
        reading = self._loop.create_task(asyncio.to_thread(read_index, folder, path, segment, version))
        reading.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may never be awaited
        return reading

    def _lose(self, job: StagedJob, rows: int, why: object) -> None:
        """Skip rows that can't be routed because the batch is corrupt."""
        if job.is_routed:
            return
        log.error("job %r: %d messages from id %d on are lost: %s", job.id, rows, job.first_id + job.routed, why)
        now = self._clock.now_ms()
        chunk = StagedChunk(job.id, job.first_id + job.routed, now, job.committed_at_ms, "", 0, rows, b"", b"")
        self._staging.route(chunk, None, [], [-1, rows])
        self.damaged += rows
        self._outbox.schedule()

    async def _route_segment(
        self, job: StagedJob, staged: StagedObject, segment: SegmentEntry, blocks: list[bytes], start_id: int
    ) -> None:
        at = start_id
        end = start_id + segment.rows
        for encoded in blocks:
            next_id = job.first_id + job.routed
            block = decode_block(encoded, staged.path, segment.payload_bytes, self._max_message_bytes)
            at += block.rows
            if at > end:
                break
            if at > next_id:
                for part, columns, row in _parts(block, encoded, block.rows - (at - next_id)):
                    await self._route_block(job, staged.path, segment.payload_offset, columns, part, row)
        if at != end:
            raise corrupt(staged.path, segment.index_offset, f"its blocks have {at - start_id} of {segment.rows} rows")

    # ------------------------------------------------------------------ a block
    async def _route_block(
        self, job: StagedJob, path: str, offset: int, encoded: bytes, block: IndexBlock, row: int
    ) -> None:
        """Route the rows of a block from ``row`` on, in pieces; its segment begins at ``offset`` of the object."""
        payload: bytes | None = None
        clock = self._loop.time
        stuck_at = clock()
        limit = self._limits.get(job.id)
        while row < block.rows and not job.is_routed:
            while limit is not None and (seconds := limit.wait(clock())) > 0 and not job.is_routed:
                await asyncio.sleep(min(seconds, _LIMIT_SECONDS))
                stuck_at = clock()
            async with self._turn:
                while self._commits.batch.nbytes > _MAX_BATCH_BYTES:  # the store can't take more
                    await self._commits.checkpoint()
                if job.is_routed:
                    return
                began = clock()
                try:
                    count = self._route_piece(job, path, offset, encoded, block, row, payload)
                except NeedEnvelopes:
                    payload = await self._payload(path, offset, block)
                    block, encoded = await asyncio.to_thread(_with_broker_headers, block, encoded, payload, path)
                    continue
                if count:
                    row += count
                    self._parked.pop(job.id, None)
                    self._blocked.pop(job.id, None)
                    stuck_at = clock()
                    if limit is None:
                        self._adapt(stuck_at - began, count)
                    await self._yield(stuck_at - began)
                    continue
            if job.id in self._parked or clock() - stuck_at > _PARKED_SECONDS:
                raise _Stuck
            await asyncio.sleep(_FULL_SECONDS)

    def _route_piece(
        self, job: StagedJob, path: str, offset: int, encoded: bytes, block: IndexBlock, row: int, payload: bytes | None
    ) -> int:
        """Route rows from ``row`` on; return their number, which is 0 if a queue is full.

        Raise NeedEnvelopes if ``payload`` must be read first, or StoreFull.
        """
        limit = self._limits.get(job.id)
        rows = min(block.rows - row, self._piece_rows if limit is None else min(self._piece_rows, limit.rows))
        piece = cut(block, row, rows) if rows < block.rows else block
        own = payload[sum(block.lengths[:row]) :] if payload is not None else None
        plan, count = self.planner.plan(piece, own, {})
        if plan.full is not None and not count:
            self._block(job, refusal_text(plan.full), plan.full.name)
            return 0
        if count < rows:
            piece = cut(piece, 0, count)
        columns = encoded if piece is block else encode_block(piece)
        now = self._clock.now_ms()
        first_id = job.first_id + job.routed
        at = offset + piece.offset
        chunk = StagedChunk(job.id, first_id, now, job.committed_at_ms, path, at, count, columns, b"")
        self.planner.apply(chunk, piece, plan)
        if limit is not None:
            limit.take(count)
        return count

    async def _payload(self, path: str, offset: int, block: IndexBlock) -> bytes:
        """Return the envelopes of a block. Their checksums are checked when they are delivered."""
        return await asyncio.to_thread(read_envelopes, self._staging.folder.open(), path, offset, block)

    async def _yield(self, seconds: float) -> None:
        """Yield the event loop; if clients are active, for longer than the piece took."""
        total = self._traffic.total
        busy, self._others = total != self._others, total
        await asyncio.sleep(seconds * (1 / _BUSY_SHARE - 1) if busy else 0)

    def _adapt(self, seconds: float, rows: int) -> None:
        """Adapt the size of pieces to the time limit."""
        fits = int(rows * _PIECE_SECONDS / max(seconds, 1e-6))
        self._piece_rows = max(_MIN_ROWS, min(fits, 2 * self._piece_rows, BLOCK_ROWS))


def _parts(block: IndexBlock, encoded: bytes, row: int) -> Iterator[tuple[IndexBlock, bytes, int]]:
    """Yield the rows of a block from ``row`` on as blocks of limited envelope size: block, columns, first row."""
    if sum(block.lengths) <= _PAYLOAD_BYTES or block.rows - row == 1:
        yield block, encoded, row
        return
    while row < block.rows:
        rows, size = 1, block.lengths[row]
        while row + rows < block.rows and size + block.lengths[row + rows] <= _PAYLOAD_BYTES:
            size += block.lengths[row + rows]
            rows += 1
        part = cut(block, row, rows)
        yield part, encode_block(part), 0
        row += rows


def _with_broker_headers(block: IndexBlock, encoded: bytes, payload: bytes, path: str) -> tuple[IndexBlock, bytes]:
    """Return a block with the headers of its envelopes, and its columns encoded.

    Raise CorruptRecord if the headers can't be stored.
    """
    try:
        checked = with_broker_headers(block, payload)
    except InvalidMessage as exc:
        raise corrupt(path, block.offset, exc.text) from exc
    return checked, encoded if checked is block else encode_block(checked)


def _read_same_tail(folder: Folder, staged: StagedObject) -> Tail:
    """Return the directory of an object, after checking that it is the committed one."""
    tail = read_tail(folder, staged.path, staged.bytes)
    if (tail.rows, tail.checksum) != (staged.rows, staged.checksum):
        raise corrupt(staged.path, staged.bytes, "it is not the batch that was committed")
    return tail
