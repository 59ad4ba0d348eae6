"""A faster start of brokers: they are forked from a process that has imported what each of them needs.

Three quarters of the CPU time of a broker's start are imports. The clients in the process of the tests execute
``broker_launcher`` in place of Python. It passes on its files, environment and arguments; if a fork can't have what it
has (another user, an option of the interpreter), it executes Python. A broker that a test itself starts becomes a child
of this process. Clients in other processes and tests under coverage start brokers as users do.
"""

from __future__ import annotations

import ctypes
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from . import broker_launcher

_REAL = sys.executable
_LAUNCHER, _FORKER = (str(Path(__file__).with_name(f"broker_{name}.py")) for name in ("launcher", "forker"))
_PR_SET_CHILD_SUBREAPER = 36
_prepared: list[_Interpreter] = []


class Forked:
    """A child of this process that it has not started: as much of ``subprocess.Popen`` as tests use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if (code := self.poll()) is None:
            with open(os.pidfd_open(self.pid)) as ended:
                select.select([ended], [], [], timeout)
            if (code := self.poll()) is None:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def forked(command: list[str], environment: Mapping[str, str], folder: Path, files: Mapping[int, int]) -> Forked | None:
    """Fork a broker with this command line of ``opendata-queue``; None if that is not possible.

    Args:
        files: its open files, as numbers in this process, by their numbers in the broker.
    """
    return _prepared[-1].fork(command, environment, folder, files) if _prepared else None


class _Interpreter:
    """Stands for the module ``sys`` in the module that starts brokers.

    Attributes:
        executable: the launcher, or whatever a test has in the real ``sys``.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._environment, self._user = root, dict(os.environ), os.geteuid()
        self._folder = Path(tempfile.mkdtemp(prefix="odq-launch-", dir="/tmp"))
        self._forker: subprocess.Popen[bytes] | None = None

    @property
    def executable(self) -> str:
        if sys.executable != _REAL or os.geteuid() != self._user:
            return sys.executable
        self._start()
        launcher = self._folder / "python"
        if not launcher.exists():
            words = [_REAL, "-IS", _LAUNCHER, _REAL, str(self._folder / "socket")]
            launcher.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            launcher.chmod(0o700)
        return str(launcher)

    def fork(
        self, command: list[str], environment: Mapping[str, str], folder: Path, files: Mapping[int, int]
    ) -> Forked | None:
        if sys.executable != _REAL or os.geteuid() != self._user:
            return None
        self._start()
        request = broker_launcher.request(command, environment, str(folder), list(files))
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_CHILD_SUBREAPER, 1)  # the broker's parent ends, and this process takes its place
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.connect(str(self._folder / "socket"))
                socket.send_fds(connection, [request], list(files.values()))
                answer = connection.recv(100)
                if answer == b"n":
                    return None
                assert connection.recv(1) == b"y"
                return Forked(int(answer))
        finally:
            prctl(_PR_SET_CHILD_SUBREAPER, 0)

    def _start(self) -> None:
        if self._forker is not None:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(self._folder / "socket"))
            listener.listen(64)
            self._forker = subprocess.Popen(
                [_REAL, "-P", _FORKER, str(listener.fileno()), "." * 8192],  # room for a broker's command line
                cwd=self._root,
                env=self._environment,
                stdin=subprocess.PIPE,  # whose end is that of the tests
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(listener.fileno(),),
            )

    def close(self) -> None:
        if self._forker is not None:
            self._forker.terminate()
            self._forker.communicate()
        shutil.rmtree(self._folder)


@contextmanager
def prepared_brokers() -> Iterator[None]:
    """Have the clients in this process start prepared brokers."""
    from kombu_opendata.client import launch_broker

    if any(name.startswith("COVERAGE_") for name in os.environ):
        yield
        return
    interpreter = _Interpreter(Path(launch_broker.__file__).parents[2])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch_broker, "sys", interpreter)
        _prepared.append(interpreter)
        try:
            yield
        finally:
            _prepared.remove(interpreter)
            interpreter.close()
