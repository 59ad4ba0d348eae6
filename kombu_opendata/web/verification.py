"""Verification of a store while its broker runs, in a separate process, so that broker and web UI are not delayed."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ..errors import StoreError

_BUCKETS = ("s3", "gs", "az", "abfs", "abfss")
_SHOWN = 100


@dataclass(frozen=True)
class Verification:
    """The result of a verification.

    Attributes:
        status: ``clean``, ``findings`` or ``incomplete``.
        incomplete: reasons why not everything could be checked.
        faults: at most 100 of ``found``, each with ``severity``, ``code``, ``text``, ``meaning`` and ``remedy``.
    """

    at: datetime
    status: str
    files: int
    records: int
    messages: int
    incomplete: tuple[str, ...]
    found: int
    faults: tuple[dict[str, str], ...]


def command(place: str, instance: str) -> str:
    """Return the command that verifies the store on the store's host."""
    return f"opendata-queue store verify {_target(place)} --instance {instance}"


def unreachable(place: str, pid: int) -> str:
    """Return the reason why this process can't read the store of this broker; empty if it can."""
    scheme = urlsplit(place).scheme
    if scheme in _BUCKETS:
        return ""
    if scheme != "file":
        return "the store is in the broker's memory"
    from ..offline.files.store_location import running_broker  # the engine's modules are needed only here

    if running_broker(Path(_target(place))) != pid:
        return "the store's folder is not on the host of the web UI, or not readable by it"
    return ""


async def verify(place: str, instance: str) -> Verification:
    """Verify the store at the place that the broker's status reports; raise StoreError if it can't be read at all."""
    line = [sys.executable, "-m", "kombu_opendata.cli", "store", "verify", "--json", "--instance", instance]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*line, _target(place), stdout=pipe, stderr=pipe)
    try:
        output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        report = json.loads(output)
    except ValueError as exc:
        raise StoreError(f"the store can't be verified: {errors.decode(errors='replace').strip()[-1000:]}") from exc
    return _verification(report)


def _target(place: str) -> str:
    """Return the folder of a local store; a bucket's URL is returned unchanged."""
    parts = urlsplit(place)
    return unquote(parts.path) if parts.scheme == "file" else place


def _verification(report: dict[str, Any]) -> Verification:
    names = ("severity", "code", "text", "meaning", "remedy")
    return Verification(
        at=datetime.now(UTC),
        status=report["status"],
        files=report["files"],
        records=sum(report["records"].values()),
        messages=report["messages"],
        incomplete=tuple(report["incomplete"]),
        found=sum(report["counts"].values()),
        faults=tuple({name: finding[name] for name in names} for finding in report["findings"][:_SHOWN]),
    )
