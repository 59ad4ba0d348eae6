"""Brokers and clients as forks of a process that has imported them: a start takes milliseconds, not a second."""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.forkserver as forkserver
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from ..support.network import enter
from ..support.processes import tail
from .broker_program import BrokerSetup, run_broker
from .fork_server import end_with_parent

READY_SECONDS = 240
_PRELOADED = ["tests.histories.fork_server", "tests.histories.fork_server_start"]
_CONTEXT = multiprocessing.get_context("forkserver")


def start_server(library: Path) -> None:
    """Start the server of forks, which has imported what they need, with a library for LD_PRELOAD."""
    _CONTEXT.set_forkserver_preload(_PRELOADED)
    os.environ["LD_PRELOAD"] = str(library)
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["LD_PRELOAD"]


class Fork:
    """A process of this kind: a session of its own, its output in a log, ended by its pid.

    Args:
        main: a function of a module; it gets the arguments.
        namespace: that of its host; empty for the host of this process.
    """

    def __init__(self, name: str, log: Path, main: Callable[..., None], *arguments: Any, namespace: str = "") -> None:
        self.name = name
        self.log = log
        self.process: ForkServerProcess = _CONTEXT.Process(target=_run, args=(log, namespace, main, arguments))
        self.process.start()
        assert self.process.pid is not None
        self.pid: int = self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.is_alive()

    def signal(self, number: int) -> None:
        """Send a signal to a process that may have ended already."""
        if self.process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.signal(signal.SIGKILL)
        self.signal(signal.SIGCONT)
        self.process.join(READY_SECONDS)

    def wait(self, seconds: float = READY_SECONDS) -> int:
        """Its exit code."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"{self.name} did not end:\n{tail(self.log)}"
        return self.process.exitcode

    def terminate(self, seconds: float = READY_SECONDS) -> int:
        self.signal(signal.SIGTERM)
        return self.wait(seconds)

    def clean_up(self) -> None:
        """Kill the process and its children, whose group is the process's."""
        self.kill()
        self.kill_group()
        self.process.close()

    def kill_group(self) -> None:
        """Kill the children that a process left."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def _run(log: Path, namespace: str, main: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.setsid()
    end_with_parent()
    if namespace:
        enter(namespace)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)
    main(*arguments)


class Broker(Fork):
    """A broker; ``report`` is what it says at its startup: where it listens, or an error. Its setup is in ``setup``."""

    def __init__(self, name: str, folder: Path, setup: BrokerSetup) -> None:
        reader, writer = _CONTEXT.Pipe(duplex=False)
        super().__init__(name, folder / f"{name}.log", run_broker, writer, setup, namespace=setup.namespace)
        writer.close()
        self._reader = reader
        self.setup = setup
        self.report: dict[str, Any] = {}

    def wait_report(self, seconds: float = READY_SECONDS) -> dict[str, Any]:
        """What it says, or nothing if it is killed before."""
        data, deadline = b"", time.monotonic() + seconds
        while not data.endswith(b"\n"):
            ready, _, _ = select.select([self._reader], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"{self.name} did not start:\n{tail(self.log)}"
            if not (chunk := os.read(self._reader.fileno(), 65_536)):
                return {}
            data += chunk
        self.report = json.loads(data)
        return self.report

    @property
    def port(self) -> int:
        address = next(text for text in self.report["listening"] if text.startswith("tcp:"))
        return int(address.rpartition(":")[2])

    def clean_up(self) -> None:
        super().clean_up()
        self._reader.close()
