"""``store repair``: a journal with a damaged record is refused, what is lost is listed, and then a broker starts."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from kombu_opendata.errors import CorruptRecord
from kombu_opendata.offline.repair import repair
from kombu_opendata.storage.clock import SystemClock
from kombu_opendata.storage.commit.journal_format import RECORD_BYTES, JournalRecord, complete_records
from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.state.store_state import QueueSettings

from ...support.backups import command
from ...support.engine import World
from ...support.store_copy import copy_store
from ...support.verified import assert_verified, verify

BODIES = [b"%03d" % number * (1 + number % 9 * 40) for number in range(40)]
SEGMENT = 8 << 10


class Killed(NamedTuple):
    """A store that a killed broker left: its last commits are in several files of the journal only."""

    root: Path
    ids: list[int]
    records: list[tuple[Path, JournalRecord]]

    def place(self, index: int) -> tuple[Path, JournalRecord]:
        """The file and the record of the message ``ids[index]``."""
        return self.records[index]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    root = tmp_path_factory.mktemp("killed") / "store"
    world = World(root.with_name("source"), EngineSettings(journal_segment_bytes=SEGMENT))
    ids: list[int] = []

    async def main() -> None:
        await world.open()
        world.engine.definitions.declare_queue("q", QueueSettings())
        first = world.publish("q", envelope=b"first")
        await world.engine.commits.checkpoint()
        for body in BODIES:
            ids.append(world.publish("q", envelope=body))
            await world.engine.commits.commit()
        entry = await world.claim("q")
        assert entry.id == first
        world.engine.operations.ack(world.queue("q"), (entry,))
        await world.engine.commits.commit()
        copy_store(world.root, root)
        await world.engine.close()

    asyncio.run(main())
    records = [
        (path, record)
        for path in sorted((root / "default.journal").glob("*.journal"))
        for record in complete_records(path.read_bytes(), int.from_bytes(path.read_bytes()[16:24], "little"), 0)
    ]
    return Killed(root, ids, records[-1 - len(BODIES) : -1])


@pytest.fixture
def store(killed: Killed, tmp_path: Path) -> Killed:
    root = tmp_path / "store"
    shutil.copytree(killed.root, root)
    return Killed(root, killed.ids, [(root / path.relative_to(killed.root), one) for path, one in killed.records])


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


async def waiting(root: Path) -> list[int]:
    engine = await Engine.open(f"file://{root}", "default", SystemClock(), EngineSettings())
    found = sorted(engine.state.queues["q"].messages.available)
    await engine.close()
    return found


def opened(root: Path) -> list[int]:
    return asyncio.run(waiting(root))


@pytest.mark.parametrize("part", ["length", "checksum", "sequence", "payload"])
def test_a_damaged_record_is_refused_listed_and_given_up(store: Killed, part: str) -> None:
    path, record = store.place(10)
    body = record.start + RECORD_BYTES + record.payload.index(BODIES[10])
    flip(path, {"length": record.start + 1, "checksum": record.start + 5, "sequence": record.start + 8}.get(part, body))
    with pytest.raises(CorruptRecord, match=f"byte {record.start} of {path}.*store repair --delete-damaged") as caught:
        opened(store.root)
    assert caught.value.text.endswith(str(store.root))
    assert verify(store.root).counts["journal-record"] == 1
    before = {file: file.read_bytes() for file in path.parent.iterdir()}
    listed = command("repair", store.root, ok=False)
    assert listed.exit_code == 4
    assert f"record {record.sequence} at byte {record.start} of {path}" in listed.output
    assert f"lost from queue q: {len(BODIES) - 10} messages" in listed.output
    assert "returned to queue q: 1 settled message:" in listed.output
    assert {
        file: file.read_bytes() for file in path.parent.iterdir()
    } == before  # nothing is changed without the option
    given_up = json.loads(command("repair", "--delete-damaged", "--json", store.root).output)
    assert given_up["published"] == {"q": store.ids[10:]}
    assert (given_up["records"], given_up["unread"], given_up["uncertain"]) == (len(BODIES) - 10, 0, 1)
    assert Path(given_up["kept"][0]).read_bytes() == before[path]
    assert_verified(store.root)
    assert opened(store.root)[1:] == store.ids[:10]
    assert_verified(store.root)
    assert "not damaged" in command("repair", "--delete-damaged", store.root).output


def test_what_an_interrupted_repair_kept_stays(store: Killed) -> None:
    path, record = store.place(10)
    flip(path, record.start + RECORD_BYTES)
    earlier = path.with_name(path.name + ".damaged")
    earlier.write_bytes(b"kept before")
    damaged = path.read_bytes()
    kept = json.loads(command("repair", "--delete-damaged", "--json", store.root).output)["kept"]
    assert earlier.read_bytes() == b"kept before"
    assert Path(kept[0]).read_bytes() == damaged
    assert_verified(store.root)


def test_a_damaged_header_is_written_again(store: Killed) -> None:
    """Of each file with needed records, each field; nothing is lost."""
    paths = sorted({path for path, _record in store.records})
    assert len(paths) >= 3
    for path, at in zip(paths[1:], (0, 4, 8, 6, 18), strict=False):
        flip(path, at)
    with pytest.raises(CorruptRecord, match="journal is damaged"):
        opened(store.root)
    given_up = json.loads(command("repair", "--delete-damaged", "--json", store.root).output)
    assert given_up["first"] is None
    assert len(given_up["headers"]) == min(len(paths) - 1, 5)
    assert opened(store.root) == store.ids
    assert_verified(store.root)


def test_a_missing_file_is_refused_and_what_follows_given_up(store: Killed) -> None:
    paths = sorted({path for path, _record in store.records})
    paths[1].unlink()
    kept = [id for id, (path, _record) in zip(store.ids, store.records, strict=True) if path == paths[0]]
    with pytest.raises(CorruptRecord, match=r"the next file begins with record"):
        opened(store.root)
    given_up = json.loads(command("repair", "--delete-damaged", "--json", store.root).output)
    assert given_up["published"]["q"] == store.ids[-len(given_up["published"]["q"]) :]
    assert opened(store.root)[1:] == kept
    assert_verified(store.root)


def test_a_sound_journal_and_one_in_use_are_left_alone(store: Killed) -> None:
    with (store.root / "broker.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = command("repair", "--delete-damaged", store.root, ok=False)
        assert refused.exit_code != 0
        assert "a broker runs on" in refused.output
    assert "not damaged" in command("repair", store.root).output
    assert opened(store.root) == store.ids


def test_an_error_of_the_file_system_is_not_reported_as_a_running_broker(
    store: Killed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(_descriptor: int) -> None:
        raise BlockingIOError("the file system is busy")

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(BlockingIOError, match="the file system is busy"):
        asyncio.run(repair(store.root, delete_damaged=True))


def test_a_bucket_has_no_journal() -> None:
    refused = command("repair", "memory://none", ok=False)
    assert refused.exit_code != 0
    assert "has no journal" in refused.output


def test_the_last_record_is_left_out_and_the_log_says_so(store: Killed, caplog: pytest.LogCaptureFixture) -> None:
    """As if the broker was killed while it wrote it: the acknowledgement is lost."""
    path, record = store.place(-1)
    end = record.end
    flip(path, end + 20)
    assert opened(store.root)[1:] == store.ids
    assert f"at byte {end} of {path}, the last one of the journal, is incomplete" in caplog.text
