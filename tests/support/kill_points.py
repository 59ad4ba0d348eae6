"""Steps of a driver of Spark in all its Python processes, and ``kill -9`` of the driver at one of them.

A step is a request to the broker, just before and just after it is sent, or a change of a file beside the store. The
processes write down their steps in one file, in which the steps of executors that work at the same time are in any
order.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

_PROJECT = Path(__file__).resolve().parents[2]
_FILE, _NUMBER = "STEPS_FILE", "STEPS_UNTIL"
_PROGRAM = "from tests.support.kill_points import install\n\ninstall()\n"
_FILES = {"open": "open", "os.rename": "rename", "os.remove": "remove", "os.mkdir": "mkdir"}


class Steps:
    """The steps of drivers that are started one after the other; ``folder`` is for the files."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "steps"
        self._folder = folder / "first-on-the-path"
        self._folder.mkdir()
        (self._folder / "sitecustomize.py").write_text(_PROGRAM)  # each Python process imports it at its start

    def until(self, number: int) -> dict[str, str]:
        """The environment of a driver that dies at this step; 0 for one that lives."""
        self._file.unlink(missing_ok=True)
        path = os.pathsep.join([str(self._folder), str(_PROJECT)])
        return {_FILE: str(self._file), _NUMBER: str(number), "PYTHONPATH": path}

    def names(self) -> list[str]:
        """What the driver has done."""
        return self._file.read_text().splitlines()


def install() -> None:
    """Watch the steps of this process."""
    path, last = Path(os.environ[_FILE]), int(os.environ[_NUMBER])
    own = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def step(name: str) -> None:
        os.write(own, f"{name}\n".encode())
        if 0 < last <= path.read_bytes().count(b"\n"):
            os.killpg(os.getsid(0), signal.SIGKILL)  # the driver and its JVM
            os.killpg(0, signal.SIGKILL)  # the executors' Python processes, if this is one of them

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        name = _FILES.get(event)
        if name is None or not isinstance(arguments[0], (str, os.PathLike)):
            return
        changed = os.fspath(arguments[0])
        if name == "open" and not arguments[2] & os.O_CREAT:
            return
        if ".staged/" in changed or changed.endswith("report.json"):
            step(f"{name} {Path(changed).suffix}")

    def send(sock: socket.socket, data: Any, *flags: int) -> int:
        is_brokers = sock.family == socket.AF_UNIX and bool(sock.getpeername())
        if is_brokers:
            step("request")
        sent = plain_send(sock, data, *flags)
        if is_brokers:
            step("sent")
        return sent

    plain_send = socket.socket.send
    sys.addaudithook(audit)
    socket.socket.send = send  # type: ignore[method-assign, assignment]
