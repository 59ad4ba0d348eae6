"""The broker's answer to a job's commit, from the process that commits to the program that called ``submit_tasks``.

It goes through a file, because Spark returns nothing from a commit and buries errors in a traceback.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ...errors import OpenDataError, from_wire, wire_code
from ...staging import BatchInfo, JobInfo


@dataclass(frozen=True)
class CommitReport:
    """One job's report. Picklable.

    Attributes:
        path: the file; empty if nobody reads the report.
    """

    path: str = ""

    def write_job(self, job: JobInfo, batches: Sequence[BatchInfo]) -> None:
        """The job was committed with these batches."""
        rows = sorted((batch.partition, batch.rows) for batch in batches)
        self._write({"job": {**asdict(job), "queues": {}, "blocked": None}, "partitions": rows})

    def write_refusal(self, exc: OpenDataError) -> None:
        """The commit failed."""
        self._write({"refused": {"code": wire_code(exc), "text": exc.text}})

    def _write(self, report: dict[str, object]) -> None:
        if self.path:
            Path(self.path).write_text(json.dumps(report))

    def read_job(self) -> tuple[JobInfo, list[tuple[int, int]]] | None:
        """The job, and its partitions with the rows of each; None if the commit was made on another host."""
        file = Path(self.path)
        if not file.exists():
            return None
        report = json.loads(file.read_text())
        return JobInfo(**report["job"]), [(partition, rows) for partition, rows in report["partitions"]]

    def raise_refusal(self) -> None:
        """Raise the error of the commit, if there is one."""
        file = Path(self.path)
        refused = json.loads(file.read_text()).get("refused") if file.exists() else None
        if refused is not None:
            raise from_wire(refused["code"], refused["text"], {}) from None
