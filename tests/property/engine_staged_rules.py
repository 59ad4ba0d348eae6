"""Staged jobs, step by step, and the same in the model: commits, routing in pieces, what becomes of the messages."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from kombu_opendata.staging.batch_block import cut, decode_block, encode_block
from kombu_opendata.staging.batch_format import parse_batch_uri
from kombu_opendata.staging.batch_reader import read_index, read_inline, read_tail
from kombu_opendata.staging.batch_writer import BatchWriter
from kombu_opendata.staging.job import BatchInfo, StagingTarget
from kombu_opendata.storage.effects.staged_jobs import StagedChunk
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.storage.records.staged_jobs import END_STATES
from kombu_opendata.storage.state.staged_state import JobOptions, StagedBatch
from tests.property.engine_model import Message, StagedJob, StagedPart, StagedRow, StoredMessage
from tests.property.engine_replay_rules import ReplayRules
from tests.property.engine_rules import MESSAGE_TTLS, ROUTES, TERMS
from tests.support.plain_store import PlainStore

ROWS = st.lists(
    st.builds(
        StagedRow,
        route=st.sampled_from([*ROUTES, ("", "nowhere")]),
        priority=st.integers(0, 2),
        delay=st.sampled_from([0, 0, 0, 500, 5000]),
        ttl=MESSAGE_TTLS,
        size=st.sampled_from([0, 1, 900]),
    ),
    min_size=1,
    max_size=7,
)


class StagedRules(ReplayRules):
    """The further rules."""

    def __init__(self) -> None:
        super().__init__()
        self.job_number = itertools.count()

    @rule(
        parts=st.lists(ROWS, min_size=1, max_size=3), on_complete=st.sampled_from([b"", b"done"]), commit=st.booleans()
    )
    def stage(self, parts: list[list[StagedRow]], on_complete: bytes, commit: bool) -> None:
        """A job is committed; in a store in memory its batches are inline, and routed in the same step."""
        name, inline = f"job-{next(self.job_number)}", self.url().startswith("memory:")
        target = StagingTarget(self.engine.staging.folder.url, "default")
        if not inline:
            target = StagingTarget(self.engine.staging.folder.url, "default", inline_bytes=0, inline_rows=0)
        now = self.clock.now_ms()
        infos = [self.write(target, name, number, rows, now) for number, rows in enumerate(parts)]
        batches = [
            StagedBatch("" if inline else parse_batch_uri(info.uri) or "", info.rows, info.bytes, info.checksum)
            for info in infos
        ]
        job = self.engine.staging.commit(name, batches, JobOptions(on_complete=on_complete))
        assert (job.first_id, job.committed_at_ms) == (self.engine.state.next_id - job.rows, now)
        assert not self.model.stored_messages or job.first_id > max(self.model.stored_messages)
        known = StagedJob(job.first_id, now, [row for rows in parts for row in rows])
        for info in infos:
            known.parts.append(self.part(info, inline))
        self.model.jobs[name] = known
        self.model.ledger.tasks[name], self.model.ledger.ends[name] = job.rows, Counter()
        if inline:
            self.route_job(name, 1000)
        self.end(commit)

    def write(self, target: StagingTarget, job: str, partition: int, rows: list[StagedRow], now: int) -> BatchInfo:
        writer = BatchWriter(target, job, partition, 0)
        for row in rows:
            exchange, key = row.route
            writer.add(
                row.envelope,
                {"n": "1", "exchange": exchange, "routing_key": key, "priority": str(row.priority)},
                exchange=exchange,
                routing_key=key,
                priority=row.priority,
                visible_at_ms=now + row.delay if row.delay else 0,
                ttl_ms=row.ttl,
            )
        return writer.close()

    def part(self, info: BatchInfo, inline: bool) -> StagedPart:
        """The one block of a batch."""
        if inline:
            ((encoded, _block, payload),) = read_inline(info, "default", self.last_job(), 1 << 20)
            return StagedPart("", info.rows, 0, encoded, payload)
        path = parse_batch_uri(info.uri) or ""
        folder = self.engine.staging.folder.open()
        tail = read_tail(folder, path, info.bytes)
        (segment,) = tail.segments
        (encoded,) = read_index(folder, path, segment, tail.version)
        return StagedPart(path, info.rows, segment.payload_offset, encoded, b"")

    def last_job(self) -> str:
        return next(reversed(self.engine.state.staged.jobs))

    @rule(count=st.integers(1, 6), newest=st.booleans(), commit=st.booleans())
    def route_staged(self, count: int, newest: bool, commit: bool) -> None:
        names = [name for name, job in self.model.jobs.items() if job.routed < len(job.rows)]
        if names:
            self.route_job(names[-1 if newest else 0], count)
            self.end(commit)

    def route_job(self, name: str, count: int) -> None:
        """The job's next rows, cut where a batch ends."""
        job = self.model.jobs[name]
        while count and job.routed < len(job.rows):
            part, skip = job.next_part()
            rows = min(count, part.rows - skip)
            self.route_chunk(name, job, part, skip, rows)
            count -= rows

    def route_chunk(self, name: str, job: StagedJob, part: StagedPart, skip: int, rows: int) -> None:
        engine, first = self.engine, job.first_id + job.routed
        whole = decode_block(part.encoded, "p", 1 << 40, 1 << 40)
        block, start = cut(whole, skip, rows), sum(whole.lengths[:skip])
        payload = part.payload[start : start + sum(block.lengths)]
        targets: list[list[str]] = []
        runs: list[int] = []
        for row in job.rows[job.routed : job.routed + rows]:
            names = list(engine.state.topology.route(*row.route))
            assert set(names) == self.routed(*row.route)
            if names and names not in targets:
                targets.append(names)
            runs += targets.index(names) if names else -1, 1
        chunk = StagedChunk(
            name,
            first,
            self.clock.now_ms(),
            job.at,
            part.path,
            part.offset + block.offset,
            rows,
            encode_block(block),
            payload,
        )
        engine.staging.route(chunk, block, [[engine.state.queues[n] for n in names] for names in targets], runs)
        for number, target in enumerate(runs[::2]):
            row, id = job.rows[job.routed + number], first + number
            if target < 0:
                self.model.ledger.ends[name]["removed"] += 1
                continue
            self.model.ledger.tasks[name] -= 1
            self.model.ledger.add(id, name, len(targets[target]))
            deadline = job.at + row.ttl if row.ttl >= 0 else 0
            self.model.envelopes[id] = row.envelope
            visible = job.at + row.delay
            self.model.stored_messages[id] = StoredMessage(*row.route, 255 - row.priority, visible, deadline)
            for queue in targets[target]:
                self.model.queues[queue].publish(Message(id, 255 - row.priority, visible, deadline), job.at)
        job.routed += rows

    @rule(newest=st.booleans(), removes=st.booleans(), commit=st.booleans())
    def cancel_job(self, newest: bool, removes: bool, commit: bool) -> None:
        """The rows that are not routed are dropped, and then, unless that is interrupted, what waits in queues."""
        staging, ledger = self.engine.staging, self.model.ledger
        names = [name for name in self.model.jobs if not self.job(name).settled_at_ms]
        if not names:
            return
        name = names[-1 if newest else 0]
        known, job = self.model.jobs[name], self.job(name)
        staging.cancel(job)
        ledger.ends[name]["removed"] += len(known.rows) - known.routed
        known.routed = len(known.rows)
        for queue_name, queue in self.model.queues.items() if removes else ():
            ids = [id for id in queue.available if id in ledger.messages and ledger.messages[id].job == name]
            stored = self.engine.state.queues[queue_name]
            assert self.run(staging.remove_waiting(job, stored, lambda: None)) == len(ids)
            for id in ids:
                ledger.end(id, "removed")
                del queue.available[id]
        self.end(commit)

    @rule(commit=st.booleans())
    def complete_jobs(self, commit: bool) -> None:
        """Each job sends its message on completion once; it may have been retried before that."""
        for name, job in list(self.engine.state.staged.completing.items()):
            assert (job.settled_at_ms > 0, job.on_complete, name in self.model.completed) == (True, b"done", False)
            self.engine.staging.complete(job)
            self.model.completed.add(name)
        self.end(commit)

    def job(self, name: str) -> Any:
        job = self.engine.state.staged.find(name)
        assert job is not None
        return job

    @rule(data=st.data(), name=TERMS, commit=st.booleans())
    def follow(self, data: st.DataObject, name: str, commit: bool) -> None:
        """A task is retried by a new message, before or after its message ends, or twice."""
        stored, ledger = self.model.needed(), self.model.ledger
        known = [id for id, message in ledger.messages.items() if self.is_stored(id, stored)]
        if not known or name not in self.model.queues:
            return
        predecessor, now = data.draw(st.sampled_from(sorted(known))), self.clock.now_ms()
        headers = {"exchange": "", "routing_key": name, "priority": "0"}
        id = self.engine.operations.publish(
            [self.engine.state.queues[name]],
            b"retry",
            headers,
            priority=255,
            created_at=now,
            visible_at=-1,
            ttl_ms=-1,
            session=b"",
            seq=0,
            total=1,
        )
        self.engine.staging.follow(id, predecessor, [name])
        self.model.envelopes[id] = b"retry"
        self.model.stored_messages[id] = StoredMessage("", name, 255, now, 0)
        self.model.queues[name].publish(Message(id, 255, now, 0), now)
        ledger.follow(id, predecessor, 1)
        self.end(commit)

    def is_stored(self, id: int | None, stored: set[int]) -> bool:
        """Whether a message, and those that follow it, are in the store: the broker forgets others."""
        if id is None:
            return True
        return id in stored and self.is_stored(self.model.ledger.newest.get(id), stored)

    # ------------------------------------------------------------------ what must hold
    @invariant()
    def tasks_are_counted(self) -> None:
        """Each message that has not ended is one task more than there are ends; the ends are as in the ledger."""
        ledger, staged = self.model.ledger, self.engine.state.staged
        open_ids = [id for queue in self.model.queues.values() for id in (*queue.available, *queue.in_flight)]
        open_ids += [id for _queue, id, _token in self.model.running]
        still_open = Counter(ledger.messages[id].job for id in open_ids if id in ledger.messages)
        for name, known in self.model.jobs.items():
            job = staged.find(name)
            assert job is not None
            ended = {end: count for end, count in zip(END_STATES, job.ended, strict=True) if count}
            assert (job.tasks, ended) == (ledger.tasks[name], {e: n for e, n in ledger.ends[name].items() if n})
            still_open[name] += len(known.rows) - known.routed
            assert job.tasks - sum(job.ended) == still_open[name]
            assert bool(job.settled_at_ms) == (not still_open[name])
            if job.on_complete:
                assert (name in staged.completing, name in self.model.completed) == (bool(job.settled_at_ms), False)
            else:
                assert bool(job.completed_at_ms) == (name in self.model.completed)

    @invariant()
    def jobs_are_as_the_model(self) -> None:
        staged = self.engine.state.staged
        for name, known in self.model.jobs.items():
            job = staged.find(name)
            assert job is not None
            assert (job.first_id, job.rows, job.routed) == (known.first_id, len(known.rows), known.routed)
            if job.settled_at_ms:
                continue
            ids = {id for id, message in self.model.ledger.messages.items() if message.job == name}
            assert job.queues.keys() >= {n for n, queue in self.model.queues.items() if self.waiting(queue, ids)}
            for queue, (routed, done, failed, removed) in job.queues.items():
                assert min(routed, done, failed, removed) >= 0
                expected = self.model.queues.get(queue)
                assert routed - done - failed - removed == (self.waiting(expected, ids) if expected else 0), queue
        assert [*staged.unrouted()] == [
            (job.first_id + job.routed, job.first_id + len(job.rows))
            for job in self.model.jobs.values() if job.routed < len(job.rows)
        ]  # fmt: skip

    def waiting(self, queue: object, ids: set[int]) -> int:
        return sum(id in ids for id in (*queue.available, *queue.in_flight))  # type: ignore[attr-defined]

    def check_objects(self, store: PlainStore, folder: Path, there: set[int]) -> None:
        """Each object's record counts what is left of it: of the messages, these are there."""
        found = dict(store.of[RecordKind.STAGED_OBJECT])
        for job in self.model.jobs.values():
            first = job.first_id
            for part in job.parts:
                ids = range(first, first + part.rows)
                first += part.rows
                if not part.path:
                    continue
                live = sum(id in there or id >= job.first_id + job.routed for id in ids)
                record = found.pop(ids.start, None)
                assert (record.live if record else 0) == live
                assert record is None or (folder / part.path).is_file()
        assert not found
