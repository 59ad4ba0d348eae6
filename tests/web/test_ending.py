"""The page's process ends in order, whatever is open."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from kombu_opendata import QueueClient

from ..support.page import PageServer
from ..support.processes import Children, is_running, wait_until

SECONDS = 60


def _first_event(stream: httpx.Response) -> str:
    return next(line for line in stream.iter_lines() if line.startswith("data:"))


@pytest.mark.parametrize("broker", ["runs", "is gone"])
def test_sigterm_ends_it_with_open_streams(broker: str, store_folder: Path, broker_url: str, started: Children) -> None:
    with QueueClient(broker_url) as client:
        client.create("mail")
        server = PageServer(store_folder, broker_url, "--read-only")
        started.add(server)
        with ExitStack() as stack:
            for view in ("", "workers", "exchanges"):
                site = stack.enter_context(httpx.Client(base_url=server.url, timeout=SECONDS))
                stream = stack.enter_context(site.stream("GET", f"/{view}", params={"live": "1"}))
                assert _first_event(stream)
            if broker == "is gone":
                _kill_broker(client)
            assert server.terminate(SECONDS) == 0
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "ERROR" not in log


def _kill_broker(client: QueueClient) -> None:
    """Kill the broker of a folder."""
    pid = client.status()["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid), SECONDS, "the end of the broker")
