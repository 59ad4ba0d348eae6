"""The console script in a terminal of a chosen size, as a user has it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .served import COMMAND

#: the terminal is the process's own, so that Ctrl-C is a signal to it, also if the tests run in a background job of a
#: shell, whose processes ignore that signal
_TAKE_TERMINAL = (
    "import fcntl, os, signal, sys, termios; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")


class Terminal:
    """A pseudo-terminal with a command in it.

    Attributes:
        output: all that the command has written.
        settings: the terminal's, as they were before the command began.
    """

    def __init__(self, *arguments: str, columns: int, lines: int = 24, **env: str) -> None:
        self._ours, self._its = pty.openpty()
        fcntl.ioctl(self._its, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.settings = termios.tcgetattr(self._its)
        self.output = ""
        clean = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, str(COMMAND), *arguments],
            stdin=self._its, stdout=self._its, stderr=self._its, env={**clean, "TERM": "xterm", "NO_COLOR": "1", **env},
            start_new_session=True,
        )  # fmt: skip

    def settings_now(self) -> object:
        return termios.tcgetattr(self._its)

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def wait_for(self, text: str, seconds: float = 60) -> str:
        """Read until this was written; returns all that was written so far, without control sequences."""
        deadline = time.monotonic() + seconds
        while text not in self.screen():
            assert self._read(deadline - time.monotonic()), f"no {text!r} in {self.screen()!r}"
        return self.screen()

    def wait_end(self, seconds: float = 60) -> int:
        """Read until the command ends; returns its exit code."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            self._read(0.05)
            assert time.monotonic() < deadline, f"it does not end: {self.screen()!r}"
        while self._read(0.0):
            pass
        return self.process.returncode

    def screen(self) -> str:
        """All that was written so far, as lines of text."""
        return _CONTROL.sub("", self.output).replace("\r\n", "\n")

    def _read(self, seconds: float) -> bool:
        if not select.select([self._ours], [], [], max(0.0, seconds))[0]:
            return False
        with suppress(OSError):
            self.output += os.read(self._ours, 65536).decode(errors="replace")
        return True

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._its)


@contextmanager
def terminal(*arguments: str, columns: int, lines: int = 24, **env: str) -> Iterator[Terminal]:
    """Run ``opendata-queue`` with these arguments in a terminal; it is ended with the block."""
    opened = Terminal(*arguments, columns=columns, lines=lines, **env)
    try:
        yield opened
    finally:
        opened.close()
