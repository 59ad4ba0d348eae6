"""The host's clock is set back between two brokers, as the system's clock: SlateDB's native code sees it, too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kombu_opendata import QueueClient

from ..support.faked_clock import faked_clock
from ..support.s3 import BUCKET, S3
from ..support.served import APPS, ServedBroker
from ..support.verified import assert_verified

pytestmark = pytest.mark.contract(14)

HOUR, DAY = 3600.0, 86_400.0


def write_rows(url: str, run: int, end: str, ahead_seconds: float, env: dict[str, str]) -> None:
    """Run ``write_rows.py`` with a clock that is wrong."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.apps.write_rows", url, str(run), end], cwd=APPS.parents[2],
        env={**os.environ, **env, **faked_clock(ahead_seconds)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, f"run {run} at {ahead_seconds:+} s: {ended.stderr[-3000:]}"


@pytest.mark.parametrize("end", ["kill", pytest.param("close", marks=pytest.mark.slow)])
def test_a_database_is_written_and_compacted_whatever_the_clock_does(tmp_path: Path, end: str) -> None:
    """Nothing is lost, tables are flushed and compacted, and garbage is deleted, with each of these clocks."""
    clocks = [0.0, -30.0, -40 * DAY, HOUR, -5 * HOUR]
    for run, ahead_seconds in enumerate(clocks):
        write_rows(f"file://{tmp_path}/s", run, end, ahead_seconds, {})


@pytest.mark.slow
def test_a_database_in_a_bucket(s3: S3) -> None:
    """The clock of the host that takes over is behind that of the host before."""
    for run, (ahead_seconds, end) in enumerate(
        [(0.0, "kill"), (-5 * HOUR, "kill"), (-9 * DAY, "close"), (-DAY, "close")]
    ):
        write_rows(f"s3://{BUCKET}/behind", run, end, ahead_seconds, s3.environment)


@pytest.fixture
def broker(tmp_path: Path, store_folder: Path) -> Callable[[float], ServedBroker]:
    def start(clock_ahead: float) -> ServedBroker:
        options = ("--store", f"file://{store_folder}", "--listen", "tcp:127.0.0.1:0")
        return ServedBroker(tmp_path, *options, clock_ahead=clock_ahead)

    return start


@pytest.mark.parametrize(
    ("back_seconds", "how"),
    [
        pytest.param(30.0, signal.SIGTERM, marks=pytest.mark.slow),
        (2 * HOUR, signal.SIGKILL),
        pytest.param(3 * DAY, signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_a_broker_starts_and_serves_after_the_clock_was_set_back(
    store_folder: Path, broker: Callable[[float], ServedBroker], back_seconds: float, how: signal.Signals
) -> None:
    first = broker(0.001)
    with QueueClient(f"opendata://127.0.0.1:{first.port}") as client:
        client.create("q")
        ids = client.send_batch("q", [b"%d" % number for number in range(20)])
        late = client.send("q", b"late", delay=60)
        held = client.read("q", vt=2)
        assert [message.id for message in held] == ids[:1]
    os.kill(first.pid, how)
    first.process.wait(60)
    second = broker(-back_seconds)
    try:
        with QueueClient(f"opendata://127.0.0.1:{second.port}") as client:
            new = client.send("q", b"new")
            assert new > late > max(ids)  # ids are not used twice
            taken: list[int] = []
            while len(taken) < 21:  # the lease of the first ends, and its message comes back
                messages = client.read_with_poll("q", vt=60, qty=21, max_poll_seconds=30)
                assert messages, taken
                taken += [message.id for message in messages]
                client.delete_many("q", messages)
            assert sorted(taken) == [*ids, new]
            assert client.metrics("q").length == 1  # the delayed message is not due: 60 s have not passed
        log = second.log.read_text()
        assert "the times in the store are corrected" in log
        assert "ERROR" not in log
    finally:
        second.process.send_signal(signal.SIGTERM)
        second.process.wait(60)
    assert second.process.returncode == 0
    assert_verified(store_folder)
    third = broker(-back_seconds - 60)  # once more, and then the clock is right again
    third.process.send_signal(signal.SIGTERM)
    assert third.process.wait(60) == 0
    fourth = broker(0.001)
    with QueueClient(f"opendata://127.0.0.1:{fourth.port}") as client:
        assert client.metrics("q").length == 1
    fourth.process.send_signal(signal.SIGTERM)
    assert fourth.process.wait(60) == 0
