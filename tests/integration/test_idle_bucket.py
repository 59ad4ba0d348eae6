"""A broker on a bucket that nobody uses leaves the bucket alone, and the first message after that does not wait."""

from __future__ import annotations

import time

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.storage.engine_settings import EngineSettings
from tests.support.waiting import pass_time

from ..support.bucket_broker import bucket_broker
from ..support.processes import wait_until
from ..support.s3 import S3

IDLE_SECONDS = 2.0
WATCHED_SECONDS = 12.0


@pytest.mark.slow
def test_an_idle_broker_hardly_asks_and_answers_at_once(s3: S3) -> None:
    """All duties go on ten times as often as usual."""

    def is_quiet() -> bool:
        return time.monotonic() - s3.proxy.log[-1].began > 3

    engine = EngineSettings(idle_seconds=IDLE_SECONDS, tidy_interval_seconds=0.5, retention_interval_seconds=1)
    with bucket_broker("idle", engine) as (server, port), QueueClient(f"opendata://127.0.0.1:{port}") as client:
        client.create("q")
        client.send("q", b"first")
        wait_until(is_quiet, 90, lambda: "\n".join(s3.requests()[-50:]))
        before = len(s3.requests())
        pass_time(WATCHED_SECONDS)
        asked = s3.requests()[before:]
        assert len(asked) <= 600 / 3600 * WATCHED_SECONDS, asked
        for number in range(3):  # each needs one write, whatever SlateDB's intervals are
            before = len(s3.requests())
            client.send("q", b"%d" % number)
            assert len([path for path in s3.requests()[before:] if "/wal/" in path]) < 6
        assert [message.body for message in client.pop("q", 10)] == [b"first", b"0", b"1", b"2"]
        opened = server.instances.open["default"].engine
        idle_settings = opened.store.settings

        def is_busy() -> bool:
            client.send("q", b"more")
            return opened.store.settings.manifest_poll_ms < idle_settings.manifest_poll_ms

        wait_until(is_busy, 60, lambda: repr(opened.store.settings))
        assert opened.commits.failure is None
        assert client.pop("q", 1)[0].body == b"more"
