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
    """Result of a verification."""

    CLEAN = 0
    FINDINGS = 1
    INCOMPLETE = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """Error or remark of a verification.

    Attributes:
        code: the kind of finding; ``docs/verify.md`` has a row for each.
        severity: damage (data is lost or can't be read), inconsistency (records contradict each other), or note.
        text: the problem, with its values.
        meaning: the consequence.
        remedy: the action to take.
        key: the key of the record, in hexadecimal; empty if the finding is not about a record.
        queue, message_id, file: the entity of the finding, if it has one.
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
        """Return the finding for JSON."""
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
    """Return a finding of a kind in :data:`~kombu_opendata.offline.finding_kinds.CODES`."""
    kind = CODES[code]
    return Finding(code, kind.severity, text, kind.meaning, kind.remedy, key.hex(), queue, message_id, file)


@dataclass(slots=True)
class Report:
    """Report of a verification.

    Attributes:
        findings: the findings in the order of the check, at most ``max_findings`` of each code.
        counts: the number of all findings of each code.
        records: the number of checked records, by kind.
        messages: the number of checked message ids.
        files: the number of checked files.
        incomplete: the reasons for an incomplete check; empty if the check was complete.
    """

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    records: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    files: int = 0
    incomplete: list[str] = field(default_factory=list)

    def add(self, found: Finding, max_findings: int) -> None:
        """Count a finding, and store it unless there are too many of its kind."""
        self.counts[found.code] += 1
        if self.counts[found.code] <= max_findings:
            self.findings.append(found)

    def of(self, severity: Severity) -> int:
        """Return the number of findings with this severity."""
        return sum(count for code, count in self.counts.items() if CODES[code].severity is severity)

    @property
    def status(self) -> VerifyStatus:
        """FINDINGS if there are findings besides notes; else INCOMPLETE if the check was incomplete, or CLEAN."""
        if self.of(Severity.DAMAGE) or self.of(Severity.INCONSISTENCY):
            return VerifyStatus.FINDINGS
        return VerifyStatus.INCOMPLETE if self.incomplete else VerifyStatus.CLEAN

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
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
            "findings": [entry.as_dict() for entry in self.findings],
        }


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a verification.

    Attributes:
        stage: ``files``, ``records`` or ``messages``.
        done: the number of files, records or messages so far.
        total: the number of all of them; None if it is unknown.
    """

    stage: str
    done: int
    total: int | None = None


OnProgress = Callable[[Progress], None]
