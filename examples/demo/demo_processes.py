"""The processes of the demo: a Celery worker that it starts, and the broker that the first client starts."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from demo_tasks import READY_VARIABLE

HERE = Path(__file__).resolve().parent


class DemoError(Exception):
    """The demo can't go on; the text says why."""


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Check the condition every 20 ms; False if it still does not hold after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class Worker:
    """A Celery worker in its own session, so that Ctrl-C reaches only the demo, which then stops it properly."""

    def __init__(self, folder: Path, *, pool: str, concurrency: int) -> None:
        self.log = folder / "worker.log"
        self._ready = folder / "worker.ready"
        command = [sys.executable, "-m", "celery", "-A", "demo_tasks", "worker", "--loglevel=WARNING"]
        command += [f"--pool={pool}", f"--concurrency={concurrency}", "--hostname=demo@%h"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=HERE,
                env={**os.environ, READY_VARIABLE: str(self._ready)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self, seconds: float) -> None:
        if not wait_until(lambda: self._ready.exists() or self.process.poll() is not None, seconds):
            raise DemoError(f"the worker was not ready after {seconds:g} s; its log is {self.log}")
        self.check()

    def check(self) -> None:
        if (code := self.process.poll()) is not None:
            raise DemoError(f"the worker ended with exit code {code}:\n{tail(self.log)}")

    def stop(self, seconds: float = 20) -> None:
        """SIGTERM: the worker finishes running tasks. If it does not end in time, it is killed with its children."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Broker:
    """The broker process of a store folder, known by its pid file."""

    def __init__(self, store: Path) -> None:
        self._pid_file = store / "broker.pid"
        self.log = store / "broker.log"

    def pid(self) -> int | None:
        try:
            return int(self._pid_file.read_text().split()[0])
        except (OSError, IndexError, ValueError):
            return None  # not started yet, or just writing the file

    def kill(self) -> int:
        """``kill -9``; returns the pid."""
        pid = self.pid()
        if pid is None or not is_running(pid):
            raise DemoError(f"no broker is running; its log is {self.log}")
        os.kill(pid, signal.SIGKILL)
        return pid

    def stop(self, seconds: float = 20) -> None:
        """SIGTERM: the broker finishes its commit and closes the store."""
        pid = self.pid()
        if pid is None or not is_running(pid):
            return
        os.kill(pid, signal.SIGTERM)
        if not wait_until(lambda: not is_running(pid), seconds):
            raise DemoError(f"the broker, process {pid}, did not end after {seconds:g} s; its log is {self.log}")


def is_running(pid: int) -> bool:
    """Whether the process exists and has not ended. A zombie, whose parent has not waited for it, counts as ended."""
    try:
        ended, _ = os.waitpid(pid, os.WNOHANG)
        return ended == 0
    except ChildProcessError:
        pass  # not ours
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return not Path("/proc/self/stat").exists()  # this system has no /proc: rely on what kill said
    return state != "Z"


def tail(path: Path, lines: int = 15) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return f"({path} does not exist)"
