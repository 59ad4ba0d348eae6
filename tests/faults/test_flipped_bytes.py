"""Flipped bytes, in every file of a small store: a broker refuses the store or has the same in it, and never less.

What ``store verify`` does not report has no effect. The one exception is the last record of the journal, which can't be
told from a torn one: it may be left out, and ``verify`` has a note. A byte of a batch object changes what its messages
are, so a broker can't deliver these, and ``verify`` reports it. The fast test takes some places of each file. The
units have all bytes of the journal and of the sync point: ``tests/unit/storage/commit``.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kombu_opendata.errors import OpenDataError
from kombu_opendata.staging.batch_block import decode_block
from kombu_opendata.staging.batch_format import parse_batch_uri
from kombu_opendata.staging.batch_reader import read_index, read_tail
from kombu_opendata.staging.job import StagingTarget
from kombu_opendata.storage.commit.journal_format import complete_records
from kombu_opendata.storage.effects.staged_jobs import StagedChunk
from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.messages.payload_reader import PayloadReader, locate
from kombu_opendata.storage.records import keys
from kombu_opendata.storage.records.kinds import RecordKind
from kombu_opendata.storage.records.payload_places import EnvelopePlace
from kombu_opendata.storage.state.staged_state import StagedBatch
from kombu_opendata.storage.state.store_state import QueueSettings

from ..support.batches import stage
from ..support.clock import ManualClock
from ..support.engine import World
from ..support.seeds import seeded_random
from ..support.store_copy import copy_store
from ..support.verified import describe, verify

pytestmark = pytest.mark.contract(15)

SETTINGS = EngineSettings(journal_segment_bytes=8 << 10)
Rows = dict[bytes, bytes]
#: rows that each start writes again: they have its times, or the journal's position
_OF_A_START = (RecordKind.HISTORY_LOG, RecordKind.JOURNAL_POSITION, RecordKind.NEWEST_TIME, RecordKind.STORE_HEADER)


def build(root: Path) -> None:
    """Tables, a WAL, a journal and a batch object: a job and three commits in a table, three in the WAL, six in the
    journal only.
    """
    world = World(root.with_name("source"), SETTINGS)

    async def main() -> None:
        await world.open()
        world.engine.definitions.declare_queue("q", QueueSettings())
        stage_job(world)
        for number in range(12):
            world.publish("q", envelope=b"message %d " % number * 5)
            await world.engine.commits.commit()
            if number in (2, 5):
                await world.engine.commits.checkpoint()
            if number == 2:
                await world.engine.upkeep.tidy()
        copy_store(world.root, root)
        await world.engine.close()

    asyncio.run(main())


def stage_job(world: World) -> None:
    """A job of one batch object, whose messages are in the queue."""
    engine = world.engine
    target = StagingTarget(engine.staging.folder.url, inline_bytes=0, inline_rows=0)
    (info,) = stage(target, "job", [[b"staged %d" % number * 5 for number in range(8)]])
    path, folder = parse_batch_uri(info.uri) or "", engine.staging.folder.open()
    tail = read_tail(folder, path, info.bytes)
    (segment,) = tail.segments
    (encoded,) = read_index(folder, path, segment, tail.version)
    block = decode_block(encoded, path, segment.payload_bytes, segment.payload_bytes)
    job = engine.staging.commit("job", [StagedBatch(path, info.rows, info.bytes, info.checksum)])
    now = world.clock.now_ms()
    chunk = StagedChunk("job", job.first_id, now, now, path, segment.payload_offset, info.rows, encoded, b"")
    engine.staging.route(chunk, block, [[world.queue("q")]], [0, info.rows])


async def staged_payloads(engine: Engine, rows: Rows) -> Rows:
    """The payloads in batch objects, by the keys of their records; none of those that can't be read."""
    reader = PayloadReader(engine.store, engine.staging.folder)
    payloads = {key: value for key, value in rows.items() if keys.parse(key).kind is RecordKind.PAYLOAD}
    places = {keys.parse(key).id or 0: locate(keys.parse(key).id or 0, value) for key, value in payloads.items()}
    read = await reader.read({id: place for id, place in places.items() if isinstance(place, EnvelopePlace)})
    return {b"staged" + keys.payload_key(id): envelope for id, envelope in read.items() if isinstance(envelope, bytes)}


async def rows_of_a_broker(root: Path) -> Rows:
    """Everything in the store once a broker has opened it, read through the engine that it uses."""
    engine = await Engine.open(f"file://{root}", "default", ManualClock(), SETTINGS)
    try:
        store = engine.store
        rows = {key: value async for batch in store.scan_batches(b"", None) for key, value in batch}
        rows |= await staged_payloads(engine, rows)
    finally:
        await engine.store.close()
        assert engine.journal is not None
        engine.journal.close()
    return {key: value for key, value in rows.items() if not key.startswith(tuple(k.prefix for k in _OF_A_START))}


class Flips:
    """A store whose bytes are flipped one at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.opened = 0
        self.whole = self._open()
        assert self.whole is not None

    def _open(self) -> Rows | None:
        """What a broker has; None if it refuses the store."""
        self.opened += 1
        copy = self.root.with_name(f"opened-{self.opened}")
        shutil.copytree(self.root, copy)
        try:
            return asyncio.run(rows_of_a_broker(copy))
        except OpenDataError:
            return None
        finally:
            shutil.rmtree(copy, ignore_errors=True)  # a refused store's threads may still write

    def check(self, path: Path, at: int, bit: int, *, may_lose: bool) -> bool:
        """Flip one bit; returns whether the broker refused the store."""
        original = path.read_bytes()
        path.write_bytes(original[:at] + bytes([original[at] ^ 1 << bit]) + original[at + 1 :])
        what = f"bit {bit} of byte {at} of {path.relative_to(self.root)}"
        try:
            report = verify(self.root, clock=ManualClock())
            rows = self._open()
        finally:
            path.write_bytes(original)
        if rows is not None and not may_lose:
            assert rows == self.whole, f"{what} changes what a broker has: {describe(report)}"
        if rows is None or rows != self.whole or path.suffix == ".batch":
            assert report.findings or report.incomplete, f"{what} is not reported"
        return rows is None


def files(root: Path) -> list[Path]:
    """Every file that holds something."""
    return sorted(
        path for path in root.rglob("*") if path.is_file() and path.stat().st_size and path.suffix != ".spare"
    )


def places(path: Path, root: Path, every: int, start: int) -> Iterator[tuple[int, bool]]:
    """Some places of a file, and whether they are in the last record of the journal, a batch object or a manifest."""
    size, last = path.stat().st_size, path.stat().st_size
    if path.suffix == ".journal":
        data = path.read_bytes()
        records = list(complete_records(data, int.from_bytes(data[16:24], "little"), 0))
        size = records[-1].end if records else 24
        if path == max(root.glob("*.journal/*.journal")):
            last = records[-1].start if records else size
    elif path.suffix == ".batch":
        last, every = 0, min(every, 97)
    elif path.suffix == ".manifest":
        # It has no checksum. At some places SlateDB panics, and the opening of the store waits for its deadline.
        last, every = 0, max(every, 397)
    for at in range(start % every, size, every):
        yield at, at >= last


def flip(root: Path, every: int) -> None:
    build(root)
    flips, dice = Flips(root), seeded_random()
    refused = dict.fromkeys((path.parent.name for path in files(root)), 0)
    for path in files(root):
        for at, may_lose in places(path, root, every, dice.randrange(every)):
            refused[path.parent.name] += flips.check(path, at, dice.randrange(8), may_lose=may_lose)
    print(refused)
    assert refused["default.journal"], refused


def test_some_flipped_bytes_of_each_file(tmp_path: Path) -> None:
    flip(tmp_path / "store", every=397)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # at some places SlateDB panics, and the opening of the store waits for its deadline
def test_many_flipped_bytes_of_each_file(tmp_path: Path) -> None:
    flip(tmp_path / "store", every=89)
