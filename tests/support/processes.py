"""Processes that tests start, watch and end by their pids."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from .prepared_broker import Forked

POLL_SECONDS = 0.02
#: before a command: SIGINT ends it, also if the tests run in a background job of a shell, whose processes ignore it
INTERRUPTIBLE = (
    sys.executable,
    "-c",
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])",
)
#: before a command: the kernel kills it when the thread that starts it ends, also by ``kill -9`` of the tests
ENDS_WITH_THREAD = (
    sys.executable,
    "-c",
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])",
)


def wait_until(condition: Callable[[], object], seconds: float, what: str | Callable[[], str]) -> None:
    """Look every 20 ms whether the condition holds; the test fails when it still does not after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(POLL_SECONDS)


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


def parent(pid: int) -> int:
    """The process that is the parent of another one."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("\nPPid:\t")[2].split()[0])


def free_ports(count: int) -> list[int]:
    """Return TCP ports of 127.0.0.1 that nothing listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(sock.getsockname()[1]) for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


def tail(path: Path, lines: int = 40) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return f"({path} does not exist)"


def run(command: list[str], cwd: Path, env: dict[str, str] | None = None, seconds: float = 90) -> str:
    """Run a command to its end; returns what it prints to standard output. It must succeed."""
    whole = {**os.environ, **(env or {})}
    done = subprocess.run(command, cwd=cwd, env=whole, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Child:
    """A process in a session of its own, with a log file."""

    def __init__(
        self,
        command: list[str],
        log: Path,
        *,
        cwd: Path,
        env: dict[str, str] | None = None,
        pass_fds: tuple[int, ...] = (),
    ) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("CELERY_")}
        self.log = log
        with log.open("ab") as output:
            self.process = self._start(command, output, cwd, {**clean, **(env or {})}, pass_fds)
        self.pid = self.process.pid

    def _start(
        self, command: list[str], output: BinaryIO, cwd: Path, env: dict[str, str], pass_fds: tuple[int, ...]
    ) -> subprocess.Popen[bytes] | Forked:
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=pass_fds,
        )

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def check(self) -> None:
        """The test fails when the process ended."""
        assert not self.ended, f"{self.log.name}: ended with {self.process.returncode}:\n{tail(self.log)}"

    def wait(self, seconds: float) -> int:
        """Its exit code; the test fails when it does not end in time."""
        wait_until(lambda: self.ended, seconds, lambda: f"end of {self.log.name}:\n{tail(self.log)}")
        return self.process.wait()

    def terminate(self, seconds: float = 60) -> int:
        """SIGTERM; returns the exit code."""
        if not self.ended:
            self.process.terminate()
        return self.wait(seconds)

    def kill(self) -> None:
        """SIGKILL for the process alone, not for its children."""
        self.process.kill()
        self.process.wait()

    def clean_up(self) -> None:
        """SIGKILL for what is left of the process and its children. Its session keeps the group's number reserved."""
        if not self.ended or _group_exists(self.pid):
            _kill_group(self.pid)
        self.process.wait()


def _group_exists(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


class Children:
    """All processes of a test."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def add(self, child: Child) -> None:
        self._children.append(child)

    def check(self) -> None:
        for child in self._children:
            child.check()

    def clean_up(self) -> None:
        for child in self._children:
            child.clean_up()


@contextmanager
def children() -> Iterator[Children]:
    """A set of processes that are gone at the end, whatever happens."""
    started = Children()
    try:
        yield started
    finally:
        started.clean_up()
