"""Findings of a verification: their kinds, the report, and its progress. ``docs/verify.md`` has a row for each kind."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: limit for the findings of one kind in a report; all are counted
MAX_FINDINGS = 1000


class Severity(enum.Enum):
    DAMAGE = "damage"  # data is lost, or can't be read
    INCONSISTENCY = "inconsistency"  # records contradict each other
    NOTE = "note"  # no action is needed


class Code(NamedTuple):
    """Kind of a finding: its severity, the consequence, and the action to take."""

    severity: Severity
    meaning: str
    remedy: str


_D, _I, _N = Severity.DAMAGE, Severity.INCONSISTENCY, Severity.NOTE
_RESTORE = "restore the store from a backup"
_REPORT = "keep a copy of the store and report it: a broker should never write this"

CODES: dict[str, Code] = {
    # ---- SlateDB's files
    "slatedb-open": Code(_D, "a broker can't open the store either", f"see the findings about files; {_RESTORE}"),
    "slatedb-unreadable": Code(_D, "records in that range can't be read", _RESTORE),
    "manifest-damaged": Code(_D, "SlateDB does not know which files belong to the database", _RESTORE),
    "manifest-suspect": Code(
        _D, "SlateDB may read the wrong files, or number new writes wrongly", f"don't start a broker; {_RESTORE}"
    ),
    "table-missing": Code(_D, "every record in it is lost", _RESTORE),
    "table-damaged": Code(_D, "the records in the damaged part are lost, in all its versions", _RESTORE),
    "wal-missing": Code(_D, "the writes in it are lost, unless the journal has them", _RESTORE),
    "wal-damaged": Code(
        _D,
        "a broker can't open the store",
        "on a local store with fsync, the journal has these commits too: move the WAL's files aside and verify again; "
        "otherwise restore the store from a backup",
    ),
    "wal-gap": Code(_D, "writes in between are lost, unless the journal has them", _RESTORE),
    "epochs-differ": Code(_N, "a starting broker may fence itself once", "nothing; start the broker again if it ended"),
    "compactions-damaged": Code(_D, "a broker can't start its compactor", "remove the newest file in compactions"),
    "boundary-damaged": Code(_D, "SlateDB can't collect its garbage", "remove the file: it is written again"),
    "sync-damaged": Code(
        _D, "a broker can't open the store", "remove the file, if the machine has not lost power since the broker ran"
    ),
    "power-lost": Code(
        _N,
        "the next broker sets unsynced files aside, and the journal covers them, so this report may show too much",
        "start the broker once, then verify again",
    ),
    # ---- the journal
    "journal-missing": Code(_D, "the last commits before the broker ended may be lost", "restore the journal's folder"),
    "journal-header": Code(
        _D, "a broker can't open the store", "restore the file, or: opendata-queue store repair --delete-damaged"
    ),
    "journal-record": Code(
        _D,
        "a broker can't open the store; this commit is lost, and it leaves out those after it",
        "restore the file, or give them up: opendata-queue store repair --delete-damaged",
    ),
    "journal-stored": Code(
        _N, "nothing is lost: the store holds this commit", "nothing; if no crash explains it, check the disk"
    ),
    "journal-sequence": Code(_I, "the file was put there by hand, or its header is damaged", "restore the file"),
    "journal-gap": Code(
        _D,
        "commits are lost, and a broker can't open the store",
        "restore the journal's folder, or give up what follows: opendata-queue store repair --delete-damaged",
    ),
    "journal-behind": Code(
        _D, "the journal is older than the store: commits may be lost", "restore both from the same moment"
    ),
    "journal-torn": Code(
        _N,
        "normal if the machine or the broker died while writing: that commit was not confirmed",
        "nothing, unless the broker stopped cleanly: then the file is damaged",
    ),
    "journal-position": Code(_D, "a broker can't open the store", _RESTORE),
    "journal-replay": Code(
        _D, "a broker can't open the store; the other findings describe the store without these commits", _RESTORE
    ),
    # ---- any record
    "record-corrupt": Code(_D, "its content is lost; a broker may refuse to open the store", _RESTORE),
    "key-unknown": Code(_N, "a newer version or another program wrote it; it is ignored", "nothing"),
    "key-value-mismatch": Code(_I, "the record was moved, or written by another program", _RESTORE),
    # ---- the store as a whole
    "header-damaged": Code(_D, "a broker takes the store for a new one, or refuses it", _RESTORE),
    "header-instance": Code(_I, "the folder holds another instance's data", "give the folder its name back"),
    "sequence-missing": Code(_D, "a broker assigns message ids again that are in use", _RESTORE),
    "sequence-behind": Code(_D, "a broker assigns message ids again that are in use", _RESTORE),
    "time-implausible": Code(_I, "the clock was wrong, or the record is damaged", "check when the message is due"),
    # ---- queues
    "queue-incomplete": Code(_D, "a broker can't open the store, or loses the queue", _RESTORE),
    "queue-unknown": Code(_I, "the records belong to a queue that does not exist, so nothing can reach them", _REPORT),
    "bucket-order": Code(_I, "a broker may overlook the bucket", _REPORT),
    "bucket-overfull": Code(_N, "a broker works with it, but more slowly", "nothing"),
    "bucket-empty": Code(_N, "it only takes space", "nothing"),
    "partition-missing": Code(_N, "its messages are delivered after a broker has moved them", "nothing"),
    "filter-differs": Code(_I, "readers of the records see a different filter than the broker", "bind the queue again"),
    "settings-implausible": Code(_I, "the queue behaves in a way that cannot be intended", "declare it again"),
    "binding-orphan": Code(_N, "the binding has no effect", "nothing"),
    "exchange-implausible": Code(_I, "messages to this exchange are not routed", "delete and declare it again"),
    # ---- messages
    "message-twice": Code(_I, "the message may run twice, or be settled and delivered", _REPORT),
    "metadata-missing": Code(_D, "filters, history and retention know nothing about the message", _RESTORE),
    "payload-missing": Code(_D, "the message can't be delivered", _RESTORE),
    "payload-uri": Code(_D, "the message can't be delivered", _RESTORE),
    "batch-missing": Code(
        _D,
        "the message can't be delivered, and will move to its queue's failed list, or the result can't be read",
        "restore the batch object",
    ),
    "batch-damaged": Code(
        _D,
        "messages in it can't be delivered, and will move to their queue's failed list, or results can't be read",
        "restore the batch object",
    ),
    "chunks-wrong": Code(_D, "the message can't be delivered", _RESTORE),
    "message-orphan": Code(_I, "it will never be delivered or collected, and takes space indefinitely", _REPORT),
    "routes-wrong": Code(_I, "the payload is deleted too early, or never", _REPORT),
    "entry-implausible": Code(
        _I, "the message is delivered at the wrong time, or fails too early or too late", _REPORT
    ),
    # ---- leases, producers, dead letters
    "lease-missing": Code(_I, "after a restart, its consumer can't settle it, so it is delivered again", _REPORT),
    "lease-stale": Code(_I, "nothing: a broker ignores it", _REPORT),
    "lease-twice": Code(_I, "two consumers may settle the same message", _REPORT),
    "task-wrong": Code(_I, "a running task is shown wrongly, or its attempt is stored twice", _REPORT),
    "producer-implausible": Code(_I, "a repeated publish may be stored twice, or a new one refused", _REPORT),
    "dead-letter-wrong": Code(_I, "the dead letter can't be published", _REPORT),
    # ---- routing, sends, staged batches
    "cursor-wrong": Code(_I, "the queue may not get messages from before its declaration", "start the replay again"),
    "idempotency-wrong": Code(_I, "a repeated send may be stored again, or a new one may be taken for it", _REPORT),
    "staged-wrong": Code(_I, "the job never ends, or its batches are removed too early or never", _REPORT),
    # ---- history
    "history-wrong": Code(
        _I,
        "attempts can't be found by headers, the error of one is missing, or what is kept beside the log is never "
        "removed",
        _REPORT,
    ),
    # ---- results
    "result-expiry": Code(_I, "the result is never removed", _REPORT),
    "result-implausible": Code(_I, "the result is kept too long, or not found", _REPORT),
    "result-chunks": Code(_I, "the result can't be read, or a value without a result is never removed", _REPORT),
    "chord-wrong": Code(_I, "the chord's callback is sent too early, or never", _REPORT),
}


class VerifyStatus(enum.IntEnum):
    """Result of a verification."""

    CLEAN = 0
    FINDINGS = 1
    INCOMPLETE = 2


class Finding(NamedTuple):
    """Error or remark of a verification.

    Attributes:
        code: the kind of finding, see :data:`CODES`.
        text: the problem, with its values.
        key: the key of the record, in hexadecimal; empty if the finding is not about a record.
        queue, message_id, file: the entity of the finding, if it has one.
    """

    code: str
    text: str
    key: str = ""
    queue: str | None = None
    message_id: int | None = None
    file: str | None = None

    @property
    def severity(self) -> Severity:
        return CODES[self.code].severity

    @property
    def meaning(self) -> str:
        return CODES[self.code].meaning

    @property
    def remedy(self) -> str:
        return CODES[self.code].remedy

    def as_dict(self) -> dict[str, Any]:
        kind = CODES[self.code]._asdict() | {"severity": self.severity.value}
        return {"code": self.code, "severity": "", "text": self.text, **kind, **self._asdict()}


def finding(
    code: str,
    text: str,
    *,
    key: bytes = b"",
    queue: str | None = None,
    message_id: int | None = None,
    file: str | None = None,
) -> Finding:
    """Return a finding of a kind in :data:`CODES`."""
    return Finding(code, text, key.hex(), queue, message_id, file)


@dataclass(slots=True)
class Report:
    """Report of a verification.

    Attributes:
        findings: the findings in the order of the check, at most :data:`MAX_FINDINGS` of each code.
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

    def add(self, problem: Finding) -> None:
        """Count a finding, and store it unless there are too many of its kind."""
        self.counts[problem.code] += 1
        if self.counts[problem.code] <= MAX_FINDINGS:
            self.findings.append(problem)

    def of(self, severity: Severity) -> int:
        return sum(count for code, count in self.counts.items() if CODES[code].severity is severity)

    @property
    def status(self) -> VerifyStatus:
        """FINDINGS if there are findings besides notes; else INCOMPLETE if the check was incomplete, or CLEAN."""
        if self.of(Severity.DAMAGE) or self.of(Severity.INCONSISTENCY):
            return VerifyStatus.FINDINGS
        return VerifyStatus.INCOMPLETE if self.incomplete else VerifyStatus.CLEAN

    def as_dict(self) -> dict[str, Any]:
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


class Progress(NamedTuple):
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
