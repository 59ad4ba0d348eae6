"""Reply of the broker to a job's commit, passed from the committing process to the caller of ``submit_tasks``.

The reply is passed in a file, because Spark returns nothing from a commit and hides errors in a traceback.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from ...errors import OpenDataError, from_wire, wire_code
from ...staging import BatchInfo, JobInfo


@dataclass(frozen=True)
class CommitReport:
    """Report of one job. Picklable.

    Attributes:
        path: the file; empty if the report is not needed.
    """

    path: str = ""

    def write_job(self, job: JobInfo, batches: Sequence[BatchInfo]) -> None:
        """Write that the job was committed with these batches."""
        rows = sorted((batch.partition, batch.rows) for batch in batches)
        self._write({"job": {**asdict(job), "queues": {}, "blocked": None}, "partitions": rows})

    def write_refusal(self, exc: OpenDataError) -> None:
        """Write that the commit failed."""
        self._write({"refused": {"code": wire_code(exc), "text": exc.text}})

    def _write(self, report: dict[str, object]) -> None:
        if self.path:
            Path(self.path).write_text(json.dumps(report))

    def read_job(self) -> tuple[JobInfo, list[tuple[int, int]]] | None:
        """Return the job, and its partitions with the rows of each; None if the commit was made on another host."""
        report = self._read()
        return (JobInfo(**report["job"]), list(map(tuple, report["partitions"]))) if report else None

    def raise_refusal(self) -> None:
        """Raise the error of the commit, if there is one."""
        if refused := self._read().get("refused"):
            raise from_wire(refused["code"], refused["text"], {}) from None

    def _read(self) -> dict[str, Any]:
        file = Path(self.path)
        return dict(json.loads(file.read_text())) if file.exists() else {}
