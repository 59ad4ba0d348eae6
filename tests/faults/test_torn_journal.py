"""kill -9, and the end of the journal is torn: what was answered for is there, each message in exactly one place.

What may be torn is what was never synced: claims and acknowledgements after the last confirmed publish, and a record
that was being written. The layout is that of docs/rfcs/0003-journal.md.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import kombu as _kombu
import pytest

import kombu_opendata  # noqa: F401 - registers the transport
from kombu_opendata.storage.clock import SystemClock
from kombu_opendata.storage.effects import codec
from kombu_opendata.storage.effects.codec import Commit
from kombu_opendata.storage.effects.publishes import PublishEffect
from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.records import settled
from kombu_opendata.storage.state.store_state import QueueSettings

from ..support.broker import EmbeddedBroker
from ..support.seeds import seeded_random

pytestmark = pytest.mark.contract(9, 15)

#: as Any: the package says it is typed, but most of its functions are not
kombu: Any = _kombu

HEADER_BYTES = 24
RECORD = struct.Struct("<IIQ")
PUBLISHED, ACKED, HELD = 60, 20, 10
QUEUE = "numbers"


class Record(NamedTuple):
    """A record of the journal's only segment."""

    begin: int
    end: int
    sequence: int
    effects: Commit


class Places(NamedTuple):
    """The ids of a queue's messages."""

    available: set[int]
    in_flight: set[int]
    done: set[int]


class Crashed(NamedTuple):
    """A store whose broker was killed, and what its clients know."""

    folder: Path
    published: set[int]
    acked: set[int]
    records: list[Record]

    @property
    def answered(self) -> int:
        """Where the last record with a confirmed publish ends."""
        return max(one.end for one in self.records if any(isinstance(effect, PublishEffect) for effect in one.effects))

    @property
    def end(self) -> int:
        return self.records[-1].end


def segment(store: Path) -> Path:
    (path,) = (store / "default.journal").glob("*.journal")
    return path


def read_records(path: Path) -> list[Record]:
    data = path.read_bytes()
    records: list[Record] = []
    offset, expected = HEADER_BYTES, int.from_bytes(data[16:24], "little")
    while True:
        length, _crc, sequence = RECORD.unpack_from(data, offset)
        if sequence != expected:
            return records
        start = offset + RECORD.size
        records.append(Record(offset, start + length, sequence, codec.decode(data[start : start + length])))
        offset, expected = start + length, expected + 1


@pytest.fixture
def crashed(store_folder: Path) -> Crashed:
    """60 messages confirmed, 20 acknowledged, 10 held, and the broker killed with -9."""
    connection = kombu.Connection(f"opendata://{store_folder / 'store'}")
    try:
        channel = connection.default_channel
        queue = kombu.Queue(QUEUE, durable=True, channel=channel)
        queue.declare()
        producer = kombu.Producer(channel)
        published = {producer.publish(number, routing_key=QUEUE).message_id for number in range(PUBLISHED)}
        taken = [queue.get() for _ in range(ACKED + HELD)]
        leases = [channel.delivered[message.delivery_tag].lease for message in taken]
        for message in taken[:ACKED]:
            message.ack()
        channel.queue_declare(QUEUE, passive=True)  # an answer after the acknowledgements: they are in the journal
        EmbeddedBroker(store_folder / "store").kill()
    finally:
        connection.collect()
    folder = store_folder / "store"
    return Crashed(folder, published, {lease[1] for lease in leases[:ACKED]}, read_records(segment(folder)))


def copy(store: Path, to: Path) -> Path:
    """The store as the killed broker left it."""
    shutil.copytree(store, to, ignore=shutil.ignore_patterns("broker.*"))
    return to


async def places_in(store: Path, *, close: bool) -> Places:
    """Open the store; without ``close`` it is left as a crash would leave it."""
    engine = await Engine.open(f"file://{store}", "default", SystemClock())
    try:
        queue = engine.state.queues[QUEUE]
        available, in_flight = list(queue.messages.available), list(queue.messages.in_flight)
        done = [id for id, _at, _attempts in settled.decode(b"", settled.join(queue.done.rows))]
        assert len({*available, *in_flight, *done}) == len(available) + len(in_flight) + len(done), "one place each"
        if close:
            await engine.close()
        else:
            await engine.store.close()
    finally:
        if engine.journal is not None and not close:
            engine.journal.close()
    return Places(set(available), set(in_flight), set(done))


def check(crashed: Crashed, torn: Path) -> None:
    """Opened after the tear, after another crash, and after a clean end, the store holds the same."""
    first = asyncio.run(places_in(torn, close=False))
    assert first.available | first.in_flight | first.done == crashed.published
    assert first.done <= crashed.acked
    assert asyncio.run(places_in(torn, close=True)) == first
    assert asyncio.run(places_in(torn, close=True)) == first


def tear(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def zeroed(path: Path, offset: int, _dice: random.Random) -> None:
    tear(path, offset, bytes(path.stat().st_size - offset))


def truncated(path: Path, offset: int, _dice: random.Random) -> None:
    with path.open("r+b") as file:
        file.truncate(offset)


def garbled(path: Path, offset: int, dice: random.Random) -> None:
    tear(path, offset, dice.randbytes(4096))


@pytest.mark.parametrize("how", [zeroed, truncated, garbled])
def test_a_torn_end_opens_to_a_sound_state(
    how: Callable[[Path, int, random.Random], None], crashed: Crashed, tmp_path: Path
) -> None:
    assert crashed.answered < crashed.end, "claims and acknowledgements after the last publish"
    dice = seeded_random()
    for number in range(3):
        offset = dice.randrange(crashed.answered, crashed.end)
        print(f"tear {number} at {offset} of {crashed.answered} to {crashed.end}")
        torn = copy(crashed.folder, tmp_path / str(number))
        how(segment(torn), offset, dice)
        check(crashed, torn)


def test_a_whole_journal_opens_to_what_the_clients_know(crashed: Crashed, tmp_path: Path) -> None:
    places = asyncio.run(places_in(copy(crashed.folder, tmp_path / "whole"), close=True))
    assert places.done == crashed.acked
    assert len(places.in_flight) == HELD
    assert len(places.available) == PUBLISHED - ACKED - HELD


def half_records(crashed: Crashed) -> dict[str, bytes]:
    """What a write that did not end may leave behind the last record."""
    following = crashed.records[-1].sequence + 1
    return {
        "a header without its payload": RECORD.pack(100, 0x12345678, following),
        "half a header": RECORD.pack(100, 0x12345678, following)[:7],
        "a length beyond the file": RECORD.pack(0xFFFF_FFFF, 0x12345678, following),
        "an empty record with a wrong sum": RECORD.pack(0, 0, following),
        "an older record": b"".join((RECORD.pack(1, 0, following - 1), b"x")),
    }


def test_half_a_record_at_the_end_costs_nothing(crashed: Crashed, tmp_path: Path) -> None:
    for number, (what, data) in enumerate(half_records(crashed).items()):
        torn = copy(crashed.folder, tmp_path / str(number))
        tear(segment(torn), crashed.end, data)
        places = asyncio.run(places_in(torn, close=False))
        assert places.done == crashed.acked, what
        assert len(places.in_flight) == HELD, what
        assert asyncio.run(places_in(torn, close=True)) == places, what


def test_a_client_goes_on_after_its_broker_was_killed_in_a_write(store_folder: Path) -> None:
    """Half a record at the journal's end; the same client's session resumes and each message is taken once."""
    broker = EmbeddedBroker(store_folder)
    with kombu.Connection(f"opendata://{store_folder}") as connection:
        queue = kombu.Queue(QUEUE, durable=True, channel=connection.default_channel)
        queue.declare()
        producer = kombu.Producer(connection.default_channel)
        for number in range(PUBLISHED):
            producer.publish(number, routing_key=QUEUE)
        held = [queue.get() for _ in range(HELD)]
        broker.kill()
        path = segment(store_folder)
        records = read_records(path)
        tear(path, records[-1].end, RECORD.pack(100, 1, records[-1].sequence + 1) + b"half")
        for message in held:
            message.ack()
        rest = []
        while (message := queue.get()) is not None:
            rest.append(message.payload)
            message.ack()
        assert [message.payload for message in held] + rest == list(range(PUBLISHED))
        broker.wait_queue(QUEUE, 0, 0)


def test_a_tear_below_the_checkpoint_costs_nothing(tmp_path: Path) -> None:
    """The store is ahead of what is left of the journal: after a power loss SlateDB's files may be all there."""

    async def work() -> set[int]:
        engine = await Engine.open(f"file://{tmp_path / 'store'}", "default", SystemClock())
        queue = engine.definitions.declare_queue(QUEUE, QueueSettings())
        ids = set()
        for _ in range(10):
            ids.add(
                engine.operations.publish(
                    [queue], b"x", {}, priority=255, created_at=0, visible_at=0, ttl_ms=-1, session=b"", seq=0, total=1
                )
            )
            await engine.commits.commit()
        for entry in list(queue.messages.available.values())[:5]:
            engine.operations.claim(queue, [entry], b"s" * 16)
            engine.operations.ack(queue, [entry])
            engine.commits.commit_journal()
        await engine.commits.checkpoint()
        await engine.store.close()
        assert engine.journal is not None
        engine.journal.close()
        return ids

    ids = asyncio.run(work())
    path = segment(tmp_path / "store")
    records = read_records(path)
    tear(path, records[-4].begin, bytes(records[-1].end - records[-4].begin))
    for close in (False, False, True):
        places = asyncio.run(places_in(tmp_path / "store", close=close))
        assert places.available | places.done == ids
        assert len(places.done) == 5
