"""A store that can't be read now, or not by this user, is not taken for a damaged one."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.errors import StoreError
from kombu_opendata.offline import Report, VerifyStatus, open_store, verify_store
from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.slatedb import ffi, ffi_choice
from tests.support.clock import ManualClock
from tests.support.unprivileged import unprivileged
from tests.support.verified import describe

from .conftest import Rich


# ---- files that this user may not read
@pytest.fixture
def root(rich: Rich, copy_of: Callable[[Rich], Path]) -> Iterator[Path]:
    """A copy that every user can get to."""
    copy = copy_of(rich)
    above = [path for path in copy.parents if path != Path("/") and not path.stat().st_mode & 0o001]
    for path in above:
        path.chmod(path.stat().st_mode | 0o011)
    yield copy
    for path in copy.rglob("*"):
        path.chmod(0o755)


@pytest.mark.parametrize(
    "pattern",
    ["default/compacted/*.sst", "default/manifest/*.manifest", "default/wal", "default.journal/*.journal", "*.sync"],
)
def test_a_file_without_permission_is_no_damage(root: Path, pattern: str) -> None:
    for path in root.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    root.chmod(0o755)
    blocked = max(root.glob(pattern))
    blocked.chmod(0)
    with unprivileged():
        report = asyncio.run(verify_store(root))
    assert report.status is VerifyStatus.INCOMPLETE, describe(report)
    assert not report.findings, describe(report)
    assert report.incomplete == [f"{blocked} can't be read: Permission denied"]


# ---- a store that does not answer
async def unavailable(*_args: Any, **_options: Any) -> Any:
    raise ffi.public().Error.Unavailable(message="connection refused")


def report_of_a_bucket(break_it: Callable[[], None]) -> Report:
    """What is found out about a store that is in no folder, once it has been broken."""

    async def main() -> Report:
        url = f"memory://{uuid.uuid4().hex}"
        engine = await Engine.open(url, "default", ManualClock())
        await engine.commits.commit()
        break_it()
        report = await verify_store(url, "default")
        with pytest.raises(StoreError, match="connection refused"):
            await open_store(url, "default")
        return report

    return asyncio.run(main())


def test_a_bucket_that_can_not_be_reached_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    async def build(builder: Any) -> Any:
        calls.append(builder)
        return await unavailable()

    report = report_of_a_bucket(lambda: monkeypatch.setattr(ffi.public().DbReaderBuilder, "build", build))
    assert report.status is VerifyStatus.INCOMPLETE, describe(report)
    assert not report.findings, describe(report)
    assert "connection refused" in report.incomplete[0]
    assert len(calls) == 2, "each was tried once: without its WAL it is no nearer"


def test_a_bucket_that_goes_away_once_it_is_open_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    binding = asyncio.run(ffi_choice.select())
    report = report_of_a_bucket(lambda: monkeypatch.setattr(binding, "get", unavailable))
    assert report.status is VerifyStatus.INCOMPLETE, describe(report)
    assert not report.findings, describe(report)
    assert "connection refused" in report.incomplete[0]
