"""Kinds of findings, and the exit status that follows from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kombu_opendata.offline import Report, Severity, VerifyStatus
from kombu_opendata.offline.findings import CODES, finding

ROOT = Path(__file__).resolve().parents[3]
SOURCES = "".join(path.read_text() for path in (ROOT / "kombu_opendata" / "offline").rglob("*.py"))


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_in_use(code: str) -> None:
    assert SOURCES.count(f'"{code}"') >= 2


def test_the_exit_status() -> None:
    report = Report()
    seen = [report.status]
    report.add(finding("key-unknown", "a note"))
    seen.append(report.status)
    report.incomplete.append("a reason")
    seen.append(report.status)
    report.add(finding("message-twice", "twice", queue="q", message_id=1))
    seen.append(report.status)
    assert seen == [VerifyStatus.CLEAN, VerifyStatus.CLEAN, VerifyStatus.INCOMPLETE, VerifyStatus.FINDINGS]
    assert (report.of(Severity.NOTE), report.of(Severity.INCONSISTENCY), report.of(Severity.DAMAGE)) == (1, 1, 0)
    assert report.as_dict()["findings"][1] == {
        "code": "message-twice", "severity": "inconsistency", "text": "twice", "key": "", "queue": "q", "message_id": 1,
        "file": None, "meaning": CODES["message-twice"].meaning, "remedy": CODES["message-twice"].remedy,
    }  # fmt: skip
