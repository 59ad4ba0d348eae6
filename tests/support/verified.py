"""For the end of a test: the store that it leaves is verified, every file, record and invariant."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kombu_opendata.offline import Report, VerifyStatus, instances, verify_store
from kombu_opendata.storage.clock import Clock


def verify(folder: Path | str, instance: str | None = None, clock: Clock | None = None) -> Report:
    """The report about a store; its broker may run or not."""
    with ThreadPoolExecutor(1) as thread:  # the thread of a test may have an event loop already: a browser's
        return thread.submit(asyncio.run, verify_store(folder, instance, clock=clock)).result()


def assert_verified(folder: Path | str, instance: str | None = None, clock: Clock | None = None) -> Report:
    """Fail with what is wrong. Notes are no fault, but a record of an unknown kind is one."""
    report = verify(folder, instance, clock)
    assert report.status is VerifyStatus.CLEAN, describe(report)
    assert "key-unknown" not in report.counts, describe(report)
    return report


def assert_all_verified(folder: Path) -> None:
    """Every instance of every store in or below a folder; a folder that is gone has none."""
    for root in {path.parent.parent for path in folder.rglob("manifest") if path.is_dir()}:
        for instance in instances(root):
            assert_verified(root, instance)


def describe(report: Report) -> str:
    """A report for the message of a failed test."""
    lines = [f"{report.status.name} {dict(report.counts)} {report.incomplete}"]
    lines += [f"{found.severity.value} {found.code}: {found.text} [{found.key[:80]}]" for found in report.findings[:20]]
    return "\n".join(lines)
