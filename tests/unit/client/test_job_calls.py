"""Waits for a job, with a clock of the test."""

from __future__ import annotations

import logging

import pytest

from kombu_opendata.client.client_clock import ClientClock
from kombu_opendata.client.job_calls import JobWait
from kombu_opendata.protocol.messages import Blocked, JobInfo


def test_a_wait_reports_only_a_job_that_stays_blocked(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    wait = JobWait(clock=ClientClock(monotonic=lambda: now[0]))
    free = JobInfo("day", state="routed")
    full = JobInfo("day", state="routed", blocked=Blocked("queue 'q' is full", 1_000, "q"))

    for seconds, job in ((0, free), (1, full), (2, free), (60, free), (61, full), (62, full), (65, full), (90, full)):
        now[0] = seconds
        with caplog.at_level(logging.WARNING, logger="kombu_opendata.client.job_calls"):
            assert wait.pause(job) is not None

    assert [record.getMessage() for record in caplog.records] == [
        "job 'day' waits: queue 'q' is full, since 1970-01-01T00:00:01Z"
    ]
