"""Findings of a verification, its report and its progress."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from .finding_kinds import CODES, Severity

__all__ = ["Finding", "OnProgress", "Progress", "Report", "Severity", "VerifyStatus", "finding"]


class VerifyStatus(enum.IntEnum):
    """How a verification ended."""

    CLEAN = 0
    FINDINGS = 1
    INCOMPLETE = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        code: the kind of finding; ``docs/verify.md`` has a row for each.
        severity: damage (something is lost or can't be read), inconsistency (records contradict each other), or note.
        text: what is wrong, with the values.
        meaning: the consequence.
        remedy: what to do.
        key: the record, in hexadecimal; empty if the finding is not about a record.
        queue, message_id, file: what the finding is about, if it is about one of these.
    """

    code: str
    severity: Severity
    text: str
    meaning: str
    remedy: str
    key: str = ""
    queue: str | None = None
    message_id: int | None = None
    file: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The finding for JSON."""
        return {**asdict(self), "severity": self.severity.value}


def finding(
    code: str,
    text: str,
    *,
    key: bytes = b"",
    queue: str | None = None,
    message_id: int | None = None,
    file: str | None = None,
) -> Finding:
    """A finding of a kind in :data:`~kombu_opendata.offline.finding_kinds.CODES`."""
    kind = CODES[code]
    return Finding(code, kind.severity, text, kind.meaning, kind.remedy, key.hex(), queue, message_id, file)


@dataclass(slots=True)
class Report:
    """What a verification found.

    Attributes:
        findings: in the order in which they were found, at most ``max_findings`` of each code.
        counts: how many findings of each code there are in all.
        records: how many records were checked, by kind.
        messages: how many message ids were checked.
        files: how many files were checked.
        incomplete: why not everything could be checked; empty if everything was.
    """

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    records: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    files: int = 0
    incomplete: list[str] = field(default_factory=list)

    def add(self, found: Finding, max_findings: int) -> None:
        """Count a finding, and keep it unless there are too many of its kind."""
        self.counts[found.code] += 1
        if self.counts[found.code] <= max_findings:
            self.findings.append(found)

    def of(self, severity: Severity) -> int:
        """How many findings have this severity."""
        return sum(count for code, count in self.counts.items() if CODES[code].severity is severity)

    @property
    def status(self) -> VerifyStatus:
        """FINDINGS if there are any besides notes; else INCOMPLETE if not everything was checked, or CLEAN."""
        if self.of(Severity.DAMAGE) or self.of(Severity.INCONSISTENCY):
            return VerifyStatus.FINDINGS
        return VerifyStatus.INCOMPLETE if self.incomplete else VerifyStatus.CLEAN

    def as_dict(self) -> dict[str, Any]:
        """The report for JSON."""
        return {
            "status": self.status.name.lower(),
            "damage": self.of(Severity.DAMAGE),
            "inconsistencies": self.of(Severity.INCONSISTENCY),
            "notes": self.of(Severity.NOTE),
            "incomplete": list(self.incomplete),
            "counts": dict(self.counts),
            "records": dict(self.records),
            "messages": self.messages,
            "files": self.files,
            "findings": [found.as_dict() for found in self.findings],
        }


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a verification is.

    Attributes:
        stage: files, records or messages.
        done: files, records or messages so far.
        total: how many there are; None if that is not known.
    """

    stage: str
    done: int
    total: int | None = None


OnProgress = Callable[[Progress], None]
