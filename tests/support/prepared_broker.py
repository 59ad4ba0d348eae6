"""A faster start of embedded brokers: they are forked from a process that has imported what each of them needs.

Three quarters of the CPU time of a broker's start are imports. The clients in the process of the tests execute
``broker_launcher`` in place of Python. It passes on its files, environment and arguments; if a fork can't have what it
has (another user, an option of the interpreter), it executes Python. Clients in other processes and the console script
start brokers as users do; so does each client while coverage is measured.
"""

from __future__ import annotations

import ctypes
import gc
import marshal
import os
import runpy
import select
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_REAL = sys.executable
_LAUNCHER = Path(__file__).with_name("broker_launcher.py")
_REQUEST_BYTES = 1 << 18


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
        launcher = self._folder / "python"
        if self._forker is None:
            self._forker = self._start()
            words = [_REAL, "-IS", str(_LAUNCHER), _REAL, str(self._folder / "socket")]
            launcher.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            launcher.chmod(0o700)
        return str(launcher)

    def _start(self) -> subprocess.Popen[bytes]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(self._folder / "socket"))
            listener.listen(64)
            return subprocess.Popen(
                [_REAL, "-P", __file__, str(listener.fileno()), "." * 8192],  # room for a broker's command line
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
    """Meanwhile, clients in this process start prepared brokers."""
    from kombu_opendata.client import launch_broker

    if any(name.startswith("COVERAGE_") for name in os.environ):
        yield
        return
    interpreter = _Interpreter(Path(launch_broker.__file__).parents[2])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch_broker, "sys", interpreter)
        try:
            yield
        finally:
            interpreter.close()


# ------------------------------------------------------------------ the process that forks
def _fork_brokers(listener: socket.socket) -> list[str]:
    """Fork a broker for each launcher until the tests end; return in the broker, with its arguments."""
    fingerprint = runpy.run_path(str(_LAUNCHER))["fingerprint"]()
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            os._exit(0)
        connection, _ = listener.accept()
        data, files, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 64)
        request = marshal.loads(data)
        forked = request["fingerprint"] == fingerprint
        if forked:
            pid = os.fork()
            if pid == 0:
                listener.close()
                connection.close()
                return _take_over(request, files)
            os.waitpid(pid, 0)  # it forks the broker and ends: see kombu_opendata/cli/__main__.py
        for file in files:
            os.close(file)
        connection.send(b"y" if forked else b"n")
        connection.close()


def _take_over(request: dict[str, Any], files: list[int]) -> list[str]:
    """Become what the launcher is; return its arguments."""
    import resource

    os.setsid()
    above = 1 + max(*files, *request["files"])
    for place, file in enumerate(files):
        os.dup2(file, above + place)
        os.close(file)
    for place, file in enumerate(request["files"]):
        os.dup2(above + place, file)
        os.close(above + place)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["folder"])
    os.umask(request["umask"])
    for limit, values in request["limits"]:
        resource.setrlimit(limit, values)
    arguments: list[str] = request["arguments"]
    _show_command_line([_REAL, *arguments])
    return arguments


def _show_command_line(words: list[str]) -> None:
    """Have /proc name these, in the memory where the kernel put the process's own."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end
    text = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))


def _main() -> int:
    sys.path.insert(0, os.getcwd())
    listener = socket.socket(fileno=int(sys.argv[1]))
    import slatedb.uniffi  # noqa: F401
    import uvloop  # noqa: F401

    from kombu_opendata.broker.process import process  # noqa: F401
    from kombu_opendata.cli import __main__ as program
    from kombu_opendata.cli import root  # noqa: F401
    from kombu_opendata.configuration import sources  # noqa: F401
    from kombu_opendata.storage.slatedb import ffi_native, ffi_polls  # noqa: F401

    gc.freeze()
    sys.argv = [str(program.__file__), *_fork_brokers(listener)[2:]]  # after `-m kombu_opendata.cli`
    return program.main()


if __name__ == "__main__":
    sys.exit(_main())
