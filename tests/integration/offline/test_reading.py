"""Reading a store that has no broker, or one that runs: nothing is written, and what is shown is what was committed."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.errors import CorruptRecord, InvalidURL, NewerFormat, NotFound, RequestError, StoreError
from kombu_opendata.offline import (
    MessageDetails,
    OfflineStore,
    Progress,
    QueueDetails,
    Record,
    VerifyStatus,
    findings,
    inspect,
    message,
    open_store,
    queue,
    record,
    scan,
    stats,
    verify_store,
)
from kombu_opendata.offline.records import message_facts
from kombu_opendata.offline.records.message_facts import MessageFacts
from kombu_opendata.offline.records.message_scan import MessageScan
from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.records import keys, store_records
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.clock import ManualClock
from tests.support.rich_store import LARGE, edit
from tests.support.unprivileged import unprivileged

from .conftest import Rich

Reader = Callable[..., Coroutine[Any, Any, Any]]


def look(root: Path | str, what: Reader, *arguments: Any, instance: str | None = None, **choice: Any) -> Any:
    """What ``what`` gives for the store."""

    async def main() -> Any:
        async with await open_store(root, instance, clock=ManualClock()) as store:
            return await what(store, *arguments, **choice)

    return asyncio.run(main())


async def listed(store: OfflineStore, **choice: Any) -> list[Record]:
    return [found async for found in scan(store, **choice)]


def tree(root: Path) -> dict[str, tuple[int, int, str]]:
    """Every file and folder: when it was changed (also its inode), and its content."""
    found = {}
    for path in [root, *sorted(root.rglob("*"))]:
        status = path.stat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = (status.st_mtime_ns, status.st_ctime_ns, content)
    return found


def read_everything(root: Path) -> None:
    async def main() -> None:
        async with await open_store(root) as store:
            await stats(store, payloads=True)
            await listed(store, limit=1000)
            await message(store, 0)
            await queue(store, "many")
        await verify_store(root)

    asyncio.run(main())


# ---- read only
@pytest.mark.parametrize("kind", ["rich", "killed"])
def test_nothing_is_written(kind: str, request: pytest.FixtureRequest) -> None:
    root = request.getfixturevalue(kind).root
    before = tree(root)
    read_everything(root)
    assert tree(root) == before


def test_a_store_that_may_not_be_written_is_read(killed: Rich, copy_of: Callable[[Rich], Path]) -> None:
    root = copy_of(killed)
    parents = [root, *list(root.parents)]
    for path in root.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    root.chmod(0o555)
    opened = [path for path in parents if path != Path("/") and not path.stat().st_mode & 0o001]
    for path in opened:
        path.chmod(path.stat().st_mode | 0o011)
    try:
        with unprivileged(), pytest.raises(PermissionError):
            (root / "probe").touch()
        with unprivileged():
            read_everything(root)
    finally:
        for path in [root, *root.rglob("*")]:
            path.chmod(0o755)


# ---- which store
def test_a_folder_and_its_urls_are_the_same_store(rich: Rich) -> None:
    shown = [look(url, listed) for url in (rich.root, f"file://{rich.root}", f"opendata://{rich.root}")]
    assert shown[0] == shown[1] == shown[2]


def test_there_is_no_store(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing", f"opendata://{tmp_path}"):
        with pytest.raises(StoreError, match="there is no store at"):
            look(place, listed)
    with pytest.raises(InvalidURL, match="is a broker"):
        look("opendata://host/default", listed)
    assert not (tmp_path / "missing").exists()


def test_a_wrong_instance_lists_those_there_are(rich: Rich, copy_of: Callable[[Rich], Path]) -> None:
    root = copy_of(rich)
    shutil.copytree(root / "default", root / "other")
    with pytest.raises(StoreError, match=r"no instance 'third': it has default, other") as caught:
        look(root, listed, instance="third")
    assert caught.value.values["instances"] == ["default", "other"]
    assert look(root, listed, instance="default")
    report = asyncio.run(verify_store(root, "other"))
    assert set(report.counts) == {"header-instance", "journal-missing"}


def test_a_store_of_a_newer_version(rich: Rich, copy_of: Callable[[Rich], Path]) -> None:
    root = copy_of(rich)
    edit(root, {keys.STORE_HEADER_KEY: b"\x63\x00and who knows what"})
    with pytest.raises(NewerFormat, match="version 99"):
        look(root, listed)
    with pytest.raises(NewerFormat, match="version 99"):
        asyncio.run(verify_store(root))


def test_a_store_in_memory() -> None:
    async def main() -> None:
        engine = await Engine.open("memory://offline", "default", ManualClock())
        engine.definitions.declare_queue("q", QueueSettings())
        await engine.commits.commit()
        async with await open_store("memory://offline", "default") as store:
            assert list((await stats(store)).queues) == ["q"]
        report = await verify_store("memory://offline", "default")
        assert report.status is VerifyStatus.CLEAN
        assert not report.files
        with pytest.raises(StoreError):
            await open_store("memory://offline", "nothing", deadline_seconds=5)
        await engine.close()

    asyncio.run(main())


# ---- the journal
def test_what_is_in_the_journal_only_is_shown(rich: Rich, killed: Rich) -> None:
    closed, dead = look(rich.root, stats), look(killed.root, stats)
    assert dead.journal.tail_commits > 0
    assert closed.journal.tail_commits == 0
    assert dead.queues == closed.queues
    for kind in (RecordKind.PAYLOAD, RecordKind.ACTIVE, RecordKind.DONE, RecordKind.CHORD_PART, RecordKind.PRODUCER):
        choice: dict[str, Any] = {"kind": kind, "limit": 1000}
        assert look(rich.root, listed, **choice) == look(killed.root, listed, **choice)


def test_a_damaged_journal_is_an_error(killed: Rich, copy_of: Callable[[Rich], Path]) -> None:
    root = copy_of(killed)
    edit(root, {keys.JOURNAL_POSITION_KEY: store_records.encode_journal_position(0)})
    with pytest.raises(CorruptRecord, match="are missing"):
        look(root, listed)


# ---- figures and records
def test_figures(rich: Rich) -> None:
    found = look(rich.root, stats, payloads=True)
    many, held, settled = (found.queues[name] for name in ("many", "held", "settled"))
    assert (many.available, many.in_flight, many.active_buckets, many.largest_active_bucket) == (32, 0, 4, 8)
    assert many.delayed == 8
    assert (held.available, held.in_flight) == (2, 3)
    assert (settled.done, settled.failed, settled.done_buckets) == (16, 8, 2)
    assert found.queues["a"].payload_bytes["ready"] == len(LARGE) + 70_000 + len(b"shared")
    assert (found.exchanges, found.bindings, found.sessions, found.leased) == (2, 5, 2, 3)
    assert (found.results, found.chords, found.dead_letters, found.messages) == (5, 1, 2, 68)
    assert found.records["chunk"].value_bytes == len(LARGE) + 70_000
    assert found.files["compacted"].files > 0
    assert found.journal.segments > 0
    assert many.oldest_id < many.newest_id == rich.ids.waiting
    assert many.oldest_at_ms == ManualClock().now_ms()
    assert found.as_dict()["queues"]["many"]["mean_active_bucket"] == 8
    assert look(rich.root, stats).records == found.records


def test_a_message_with_everything_about_it(rich: Rich) -> None:
    large = look(rich.root, message, rich.ids.large)
    assert (large.payload_bytes, large.routes, large.payload_uri) == (len(LARGE), 1, f"chunks:3:{len(LARGE)}")
    assert [(place["queue"], place["state"]) for place in large.places] == [("a", "ready")]
    shared = look(rich.root, message, rich.ids.shared)
    assert sorted((place["queue"], place["state"]) for place in shared.places) == [
        ("a", "ready"), ("b", "ready"), ("c", "done"),
    ]  # fmt: skip
    assert shared.routes == 3
    assert shared.payload_preview == "shared"
    held = look(rich.root, message, rich.ids.held)
    assert held.places[0]["consumer"] == "other@host"
    assert held.places[0]["holder"] == (b"o" * 16).hex()
    letter = look(rich.root, message, rich.ids.letter)
    assert letter.attempts == ["consumer"]
    assert letter.dead_letters[0]["reason"] == "delivery_limit"
    assert isinstance(letter.as_dict(), dict)
    with pytest.raises(NotFound, match="no message 3999"):
        look(rich.root, message, 3999)


def test_a_queue(rich: Rich) -> None:
    found = look(rich.root, queue, "a")
    assert found.counts == {"ready": 3}
    assert found.as_dict()["counts"] == {"ready": 3}
    assert {bound["exchange"] for bound in found.bindings} == {"x", "t", "amq.direct"}
    assert found.config["max_attempts"] == 2
    with pytest.raises(NotFound, match="no queue 'nobody'"):
        look(rich.root, queue, "nobody")


def test_inspect_tells_them_apart_by_type(rich: Rich) -> None:
    assert isinstance(look(rich.root, inspect, b"\x01\x10"), Record)
    assert isinstance(look(rich.root, inspect, 0), MessageDetails)
    assert isinstance(look(rich.root, inspect, "späti 'ö'"), QueueDetails)
    with pytest.raises(NotFound, match="no record"):
        look(rich.root, record, b"none")


def test_every_kind_of_record_is_shown(rich: Rich) -> None:
    found = look(rich.root, listed, limit=1000)
    assert {one.kind for one in found} == {kind.value for kind in RecordKind if rich.plain.of[kind]}
    assert not any(one.problem for one in found)
    assert [one.key for one in found] == sorted(one.key for one in found)
    assert {bytes.fromhex(one.key) for one in found} == rich.plain.raw.keys()


def test_a_scan_is_bounded(rich: Rich) -> None:
    assert len(look(rich.root, listed, kind="payload", limit=3)) == 3
    first, second = (
        look(rich.root, listed, kind=RecordKind.METADATA, limit=2, start=start)
        for start in (b"", keys.metadata_key(1) + b"\0")
    )  # fmt: skip
    assert [one.of["id"] for one in first + second] == [0, 1, 2, 3]
    of_queue = look(rich.root, listed, queue="many")
    assert {one.kind for one in of_queue} == {"active", "done", "failed", "config", "options", "queue counts"}
    assert len(look(rich.root, listed, kind="active", queue="many")) == 4
    wrong: tuple[dict[str, Any], ...]
    wrong = ({"limit": 0}, {"kind": "nonsense"}, {"kind": "payload", "queue": "many"})
    for choice in wrong:
        with pytest.raises(RequestError):
            look(rich.root, listed, **choice)


def test_a_record_that_does_not_decode_is_shown(rich: Rich, copy_of: Callable[[Rich], Path]) -> None:
    root = copy_of(rich)
    edit(root, {keys.active_key("many"): b"\1", b"\x01\x7f": b"new", keys.payload_key(0): b"\1\2\0\xff\xfe"})
    broken, unknown, binary = (
        look(root, record, key) for key in (keys.active_key("many"), b"\x01\x7f", keys.payload_key(0))
    )
    assert (broken.kind, broken.value) == ("active", None)
    assert "bytes expected" in broken.problem
    assert unknown.kind == "unknown"
    assert binary.value == {"bytes": 2, "hex": "fffe"}


def test_progress_is_told(rich: Rich) -> None:
    seen: list[Progress] = []
    asyncio.run(verify_store(rich.root, progress=seen.append))
    assert {one.stage for one in seen} == {"files", "records"}
    assert all(one.done > 0 for one in seen)


def test_a_report_keeps_so_many_findings_of_a_kind(
    rich: Rich, copy_of: Callable[[Rich], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "MAX_FINDINGS", 3)
    root = copy_of(rich)
    edit(root, {keys.payload_key(id): None for id in range(10, 20)})
    report = asyncio.run(verify_store(root))
    assert report.counts["payload-missing"] == 10
    assert len(report.findings) == 3
    assert report.as_dict()["status"] == "findings"


async def scanned(store: OfflineStore, *calls: Callable[..., None], **sizes: Any) -> list[MessageFacts]:
    spans = []
    for kind, decode in message_facts.BUCKETS.items():
        for key, value in await store.scan(*keys.kind_range(kind)):
            parsed = keys.parse(key)
            spans.append(message_facts.span_of(kind, key, parsed.name or "", parsed.bucket or 0, decode(key, value)))
    scan = MessageScan(store, [span for span in spans if span is not None], *calls, **sizes)
    return [one async for one in scan.messages()]


def test_small_windows_give_the_same_messages(rich: Rich) -> None:
    whole = look(rich.root, scanned)
    assert [one.id for one in whole] == sorted(rich.plain.of[RecordKind.METADATA])
    for entries, ids in ((1, 1), (5, 3), (20, 50_000), (100_000, 7)):
        assert look(rich.root, scanned, window_entries=entries, window_ids=ids, max_buckets=1) == whole


def test_a_routes_block_is_counted_and_found_damaged_once_however_windows_end(
    rich: Rich, copy_of: Callable[[Rich], Path]
) -> None:
    root = copy_of(rich)
    far = keys.routes_block_key(9000)
    edit(root, {keys.routes_block_key(rich.ids.shared): b"\1\2\0", far: b"\2\1\0\0\0"})
    report = asyncio.run(verify_store(root))
    assert dict(report.counts) == {"record-corrupt": 2}  # and nothing about counts that may have been in them
    assert report.records["routes block"] == 2
    corrupt: list[bytes] = []
    kinds: list[RecordKind] = []
    for times, ids in enumerate((1, 7, 50_000), 1):
        look(root, scanned, lambda key, _: corrupt.append(key), lambda kind, *_: kinds.append(kind), window_ids=ids)
        assert (len(corrupt), kinds.count(RecordKind.ROUTES_BLOCK)) == (2 * times, 2 * times)
