"""What a publish to a bucket waits for: the commit under way, and its own."""

from __future__ import annotations

import statistics
import time

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.storage.engine_settings import EngineSettings

from ..support.bucket_broker import bucket_broker
from ..support.s3 import S3

DELAY_SECONDS = 0.1
PUBLISHES = 60


@pytest.mark.slow
def test_a_publish_waits_for_two_requests_at_most_also_during_maintenance(s3: S3) -> None:
    """One maintenance round of a store makes some 30 requests in a row. It goes on all the time here."""
    engine = EngineSettings(tidy_interval_seconds=0.1, bucket_tidy_seconds=0.1, retention_interval_seconds=0.5)
    with bucket_broker("latency", engine) as (_, port), QueueClient(f"opendata://127.0.0.1:{port}") as client:
        client.create("q")
        client.send("q", b"first")
        s3.proxy.delay_seconds = DELAY_SECONDS
        since, taken = len(s3.proxy.log), []
        for number in range(PUBLISHES):
            began = time.monotonic()
            client.send("q", b"%d" % number)
            taken.append(time.monotonic() - began)
        counts = s3.proxy.counts(since)
        s3.proxy.delay_seconds = 0
    assert counts["PUT manifest"] >= 2, counts  # maintenance took place
    assert statistics.median(taken) <= 2.5 * DELAY_SECONDS, taken
    assert max(taken) <= 7 * DELAY_SECONDS, taken  # twice the delay, and a busy machine
