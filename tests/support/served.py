"""A broker that is run by hand: ``opendata-queue broker``, with users and TLS."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

from .faked_clock import faked_clock
from .prepared_broker import Forked, forked
from .processes import Child, tail

APPS = Path(__file__).parent / "apps"
COMMAND = Path(sys.executable).with_name("opendata-queue")
READY_SECONDS = 60


class ServedBroker(Child):
    """``opendata-queue broker`` with these options.

    Args:
        grace_seconds: with ``lease_seconds``, how long what a client held is held for it after a restart.
        clock_ahead: by how many seconds the broker's system clock is wrong.
        app: a program of ``tests/support/apps`` that stands for the command.

    Attributes:
        report: what it said over the ready pipe.
    """

    def __init__(
        self,
        folder: Path,
        *options: str,
        lease_seconds: int | None = None,
        grace_seconds: float = 5.0,
        clock_ahead: float = 0.0,
        descriptors: int | None = None,
        app: str = "",
    ) -> None:
        read_fd, write_fd = os.pipe()
        program = [sys.executable, str(APPS / app)] if app else [str(COMMAND)]
        if lease_seconds is not None:
            program = [sys.executable, str(APPS / "short_leases.py"), str(lease_seconds), str(grace_seconds)]
        if descriptors is not None:
            program = ["/bin/sh", "-c", f'ulimit -n {descriptors}; exec "$0" "$@"', *program]
        try:
            command = [*program, "broker", *options, "--ready-fd", str(write_fd)]
            env = faked_clock(clock_ahead) if clock_ahead else None
            super().__init__(command, folder / "served.log", cwd=folder, pass_fds=(write_fd,), env=env)
        finally:
            os.close(write_fd)
        try:
            self.report = self._read_report(read_fd)
        finally:
            os.close(read_fd)

    def _start(
        self, command: list[str], output: BinaryIO, cwd: Path, env: dict[str, str], pass_fds: tuple[int, ...]
    ) -> subprocess.Popen[bytes] | Forked:
        if command[0] == str(COMMAND):
            with open(os.devnull, "rb") as nothing:
                files = {0: nothing.fileno(), 1: output.fileno(), 2: output.fileno(), **{fd: fd for fd in pass_fds}}
                if (process := forked(command, env, cwd, files)) is not None:
                    return process
        return super()._start(command, output, cwd, env, pass_fds)

    def _read_report(self, fd: int) -> dict[str, Any]:
        data = b""
        while not data.endswith(b"\n"):
            ready, _, _ = select.select([fd], [], [], READY_SECONDS)
            chunk = os.read(fd, 65_536) if ready else b""
            assert chunk, f"the broker did not say whether it is ready:\n{tail(self.log)}"
            data += chunk
        report: dict[str, Any] = json.loads(data)
        return report

    @property
    def url(self) -> str:
        """The broker's URL over TCP."""
        return f"opendata://127.0.0.1:{self.port}"

    @property
    def metrics_port(self) -> int:
        """The port of ``--metrics``, which the system chose."""
        return int(self.report["metrics_port"])

    @property
    def port(self) -> int:
        """The TCP port, which the system chose."""
        address = next(text for text in self.report["listening"] if text.startswith("tcp:"))
        return int(address.rpartition(":")[2])
