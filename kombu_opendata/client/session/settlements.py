"""Settlements of a session that the broker has not confirmed; a resume repeats them."""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from ...protocol.framing import frame
from ...protocol.messages import Lease, Reported, ReportTasks, RunningLate, Settle
from ...protocol.task_reports import TaskReport

#: characters of unconfirmed reports beyond which further reports omit their texts: a Resume has all of them in one
#: frame
MAX_TEXTS = 4 << 20


class Settlements:
    """Settlements of one session on its connection.

    Attributes:
        unconfirmed: unconfirmed settlements, in order: outcome, queue, message id, token, and the report of the task,
            if there is one.
        reports: the last of these that have reports and wait for the next frame.
    """

    __slots__ = ("_confirmed", "_reported", "_settled", "_texts", "reports", "unconfirmed")

    def __init__(self) -> None:
        self.unconfirmed: deque[tuple[int, str, int, int] | Reported] = deque()
        self.reports: list[Reported] = []
        self._settled = 0  # on this connection
        self._confirmed = 0  # number of those that the broker confirmed
        self._reported = 0  # settled up to the last of the reports
        self._texts = 0  # characters of reports since the last time that nothing was unconfirmed

    def settle(self, outcome: int, channel: int, leases: list[Lease]) -> Settle:
        """End leases and return the message for the broker."""
        for lease in leases:
            self.unconfirmed.append((outcome, *lease))
        self._settled += len(leases)
        return Settle(self._settled, outcome, channel, leases)

    def report(self, outcome: int, lease: Lease, report: TaskReport | None) -> None:
        """End a lease, or the run of a started task; :meth:`take_reports` returns the frame for the broker."""
        if report is not None and (report.error or report.traceback):
            self._texts += len(report.error) + len(report.traceback)
            if self._texts > MAX_TEXTS:
                report = replace(report, error="", traceback="")
        queue, id, token = lease
        item: Reported = (outcome, queue, id, token, report)
        self.unconfirmed.append(item)
        self.reports.append(item)
        self._settled += 1
        self._reported = self._settled

    def take_reports(self, running: list[RunningLate] | None = None) -> bytes:
        """Return the frame with the pending reports, at least one, and the running tasks if these are given."""
        reports, self.reports = self.reports, []
        return frame(ReportTasks(self._reported, reports, running))

    def confirm(self, settled: int) -> None:
        """Remove the settlements that the broker has applied; ``settled`` counts those of the connection."""
        unconfirmed = self.unconfirmed
        for _ in range(min(settled - self._confirmed, len(unconfirmed))):
            unconfirmed.popleft()
        self._confirmed = max(settled, self._confirmed)
        if not unconfirmed:
            self._texts = 0

    # ------------------------------------------------------------ a new connection
    def for_resume(self) -> tuple[list[tuple[int, str, int, int]], list[tuple[int, TaskReport]]]:
        """Return all unconfirmed settlements, and the reports by their position among them."""
        settles = [(item[0], item[1], item[2], item[3]) for item in self.unconfirmed]
        reports = [(place, item[4]) for place, item in enumerate(self.unconfirmed) if len(item) > 4]
        return settles, [(place, report) for place, report in reports if report is not None]

    def restart(self) -> None:
        """Reset the counts: the broker has applied all settlements, and a new connection counts from 0."""
        self.unconfirmed.clear()
        self.reports.clear()
        self._settled = self._confirmed = self._texts = 0
