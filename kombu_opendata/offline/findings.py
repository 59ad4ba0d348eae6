"""What a verification finds, and its report."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from .finding_kinds import CODES, Severity

__all__ = ["Finding", "Report", "Severity", "Status", "finding"]


class Status(enum.IntEnum):
    """How a verification ended; as a process's exit status as well."""

    CLEAN = 0
    FINDINGS = 1
    INCOMPLETE = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        code: names the kind of finding; ``docs/verify.md`` has one row for each.
        severity: damage (something is lost or can't be read), inconsistency (records contradict each other), or note.
        text: what is wrong, with the values.
        meaning: what follows from it.
        remedy: what to do.
        key: the record, in hexadecimal; empty when it is about none.
        queue, message_id, file: where, as far as it is about one.
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
        findings: in the order they were found, at most ``max_findings`` of each code.
        counts: how many of each code, all of them.
        records: how many records were checked, by kind of record.
        messages: how many message ids were checked.
        files: how many files were checked.
        incomplete: why not everything could be checked; empty when it was.
    """

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    records: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    files: int = 0
    incomplete: list[str] = field(default_factory=list)

    def add(self, found: Finding, max_findings: int) -> None:
        """Count a finding, and keep it if there are not too many of its kind."""
        self.counts[found.code] += 1
        if self.counts[found.code] <= max_findings:
            self.findings.append(found)

    def of(self, severity: Severity) -> int:
        """How many findings there are of a severity."""
        return sum(count for code, count in self.counts.items() if CODES[code].severity is severity)

    @property
    def is_clean(self) -> bool:
        """Whether there is nothing but notes, and everything was checked."""
        return self.status is Status.CLEAN

    @property
    def status(self) -> Status:
        """The exit status: 0 clean (notes do not count), 1 findings, 2 no findings but not everything was checked."""
        if self.of(Severity.DAMAGE) or self.of(Severity.INCONSISTENCY):
            return Status.FINDINGS
        return Status.INCOMPLETE if self.incomplete else Status.CLEAN

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
