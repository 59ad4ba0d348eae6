"""Damaged files: flipped bytes, missing, cut and emptied files of each kind are found, or change nothing.

The places come from a seed that is printed; ``FAULT_SEED=… pytest …`` takes the same ones again.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from kombu_opendata.errors import StoreError
from kombu_opendata.offline import Finding, open_store
from kombu_opendata.offline.files.database_files import views_of
from kombu_opendata.offline.files.journal_files import JournalTail
from kombu_opendata.storage.records.kinds import RecordKind
from kombu_opendata.storage.slatedb import ffi
from kombu_opendata.storage.slatedb.object_store import locate
from tests.support.clock import ManualClock

from ..support.rich_store import build
from ..support.seeds import seeded_random
from ..support.verified import assert_verified, describe, verify

pytestmark = [pytest.mark.slow, pytest.mark.contract(15)]

FLIPS = 12
#: file → the newest that fits; the manifest and the lists of compactions before the latest are not read any more
KINDS = {
    "manifest": "default/manifest/*.manifest",
    "table": "default/compacted/*.sst",
    "wal": "default/wal/*.sst",
    "compactions": "default/compactions/*.compactions",
    "journal": "default.journal/*.journal",
    "sync point": "default.sync",
}


class Store:
    """A store that is damaged and mended again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rows = read(root)

    def file(self, kind: str) -> Path:
        """A file of this kind that the database needs."""
        found = sorted(self.root.glob(KINDS[kind]))
        if kind in ("table", "wal"):
            needed = names(self.root)
            found = [path for path in found if path.name in needed] or found
        return max(found, key=lambda path: path.stat().st_size) if kind in ("table", "wal") else found[-1]

    def missed(self, kind: str) -> Path:
        """As ``file``, but of the journal the first: that its last of several is missing, nothing tells."""
        return min(self.root.glob(KINDS[kind])) if kind == "journal" else self.file(kind)

    def check(self, what: str) -> list[Finding]:
        """Damage is found, or what is read is the same as before. Returns the findings."""
        report = verify(self.root)
        if not report.findings:
            assert read(self.root) == self.rows, f"{what} was not found and changes what is read"
        return report.findings


def read(root: Path) -> dict[bytes, bytes]:
    async def main() -> dict[bytes, bytes]:
        # A lease's record has the time of the checkpoint that writes it, so time must stand still.
        async with await open_store(root, clock=ManualClock()) as store:
            rows = {key: value async for rows in store.scan_batches(b"", None) for key, value in rows}
        # Rows of history come again from the journal when a broker opens the store; an offline reader leaves them out.
        history = RecordKind.HISTORY_LOG.prefix
        return {key: value for key, value in rows.items() if not key.startswith(history)}

    return asyncio.run(main())


def names(root: Path) -> set[str]:
    """Of the tables that the manifest refers to, and the WAL files that are replayed."""

    async def main() -> set[str]:
        found = locate(f"file://{root}", "default", create=False)
        manifest = await ffi.public().AdminBuilder(found.path, found.store).build().read_manifest(None)
        wal = {path.name for path in (root / "default" / "wal").iterdir() if path.stat().st_size}
        unneeded = {f"{number:020d}.sst" for number in range(manifest.replay_after_wal_id + 1)}
        return {f"{view.sst.id.value}.sst" for view in views_of(manifest)} | (wal - unneeded)

    return asyncio.run(main())


@pytest.fixture(scope="module", params=["closed", "killed"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    root = tmp_path_factory.mktemp(request.param) / "store"
    build(root, tail=request.param == "killed")
    assert_verified(root)
    return Store(root)


def damaged(store: Store, file: Path, change: Callable[[bytes], bytes | None], what: str) -> list[Finding]:
    """The findings about a store with this file changed, or without it."""
    original = file.read_bytes()
    changed = change(original)
    if changed == original:
        return []
    try:
        if changed is None:
            file.unlink()
        else:
            file.write_bytes(changed)
        return store.check(what)
    finally:
        file.write_bytes(original)


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_byte_is_found_or_harmless(store: Store, kind: str) -> None:
    dice = seeded_random()
    file = store.file(kind)
    size = JournalTail(file.parent, 0).segments[-1].used_bytes if kind == "journal" else file.stat().st_size
    is_needed = kind == "journal" or file.name in names(store.root)
    found = 0
    for _ in range(FLIPS):
        at, mask = dice.randrange(size), dice.randrange(1, 256)
        what = f"byte {at} of {file.name} ^ {mask:#x}"
        findings = damaged(store, file, partial(flipped, at=at, mask=mask), what)
        found += bool(findings)
        if is_needed:  # every byte of these has a checksum over it
            assert any(one.file == str(file) for one in findings), (what, findings)
    print(f"{found} of {FLIPS} found in {file.name}")
    assert_verified(store.root)


def flipped(data: bytes, at: int, mask: int) -> bytes:
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda _data: None, id="missing"),
        pytest.param(lambda data: data[: len(data) // 2], id="cut"),
        pytest.param(lambda _data: b"", id="emptied"),
        pytest.param(lambda data: bytes(len(data)), id="zeros"),
    ],
)
def test_a_file_that_is_not_whole_is_found_or_harmless(
    store: Store, kind: str, change: Callable[[bytes], bytes | None], request: pytest.FixtureRequest
) -> None:
    file = store.missed(kind) if change(b"") is None else store.file(kind)
    findings = damaged(store, file, change, f"{kind} {request.node.name}")
    if kind == "table":
        assert any(one.file == str(file) for one in findings), findings


def test_everything_else_is_read(store: Store, tmp_path: Path) -> None:
    """A damaged table takes only its own part with it, and what lies in that is not taken for missing."""
    root = tmp_path / "store"
    shutil.copytree(store.root, root)
    file = root / store.file("table").relative_to(store.root)
    data = file.read_bytes()
    file.write_bytes(flipped(data, len(data) // 3, 1))
    report = verify(root)
    assert report.counts["table-damaged"] == 1, describe(report)
    assert not report.counts["payload-missing"] + report.counts["metadata-missing"], describe(report)
    assert sum(report.records.values()) > 100
    assert report.incomplete


def test_a_store_that_can_not_be_opened_is_an_error_that_names_it(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(store.root, root)
    for file in (root / "default" / "manifest").iterdir():
        file.write_bytes(b"nothing")
    report = verify(root)
    assert {"manifest-damaged", "slatedb-open"} <= report.counts.keys(), describe(report)
    assert report.incomplete
    with pytest.raises(StoreError, match=str(root)):
        read(root)
