"""pytest-celery's nodes as processes: what it expects of a container, of a broker and of a worker."""

from __future__ import annotations

import signal as signals
import subprocess
from pathlib import Path
from typing import Any

import celery
from pytest_celery import CeleryTestContainer

from ..support.processes import Child, is_running
from ..support.served import ServedBroker
from ..support.workers import Worker

STOP_SECONDS = 60


class ProcessNode(CeleryTestContainer):
    """A process in a container's clothes.

    Attributes:
        child: the process that runs now; another one after a restart.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.child = self._start()

    def _start(self) -> Child:
        raise NotImplementedError

    # ------------------------------------------------------------ what pytest-celery asks a container
    @property
    def id(self) -> str:
        return str(self.child.pid)

    @property
    def name(self) -> str:
        return self._name

    @property
    def status(self) -> str:
        return "running" if is_running(self.child.pid) else "exited"

    @property
    def env(self) -> dict[str, str]:
        pairs = Path(f"/proc/{self.child.pid}/environ").read_text().split("\0")
        return dict(pair.split("=", 1) for pair in pairs if "=" in pair)

    @property
    def celeryconfig(self) -> dict[str, Any]:
        return {}

    def logs(self) -> str:
        return self.child.log.read_text()

    def reload(self) -> None:
        """Nothing is cached."""

    def ready(self) -> bool:
        self.child.check()
        return True

    def kill(self, signal: str | int = "SIGKILL") -> None:
        """Send a signal and wait for the end of the process."""
        number = signals.Signals[signal] if isinstance(signal, str) else signal
        self.child.process.send_signal(number)
        self.child.wait(STOP_SECONDS)

    def restart(self, timeout: int = STOP_SECONDS) -> None:
        """Stop what runs, start it again, and wait until it is ready."""
        if self.status == "running":
            self.child.terminate(timeout)
        self.child.clean_up()
        self.child = self._start()
        self.ready()

    def exec_run(self, command: list[str], **_: Any) -> tuple[int, bytes]:
        """Run a command in the process's folder; returns its exit code and output."""
        folder = Path(f"/proc/{self.child.pid}/cwd").resolve()
        done = subprocess.run(command, cwd=folder, env=self.env, capture_output=True, check=False, timeout=STOP_SECONDS)
        return done.returncode, done.stdout + done.stderr

    def teardown(self) -> None:
        """The end of the process and of its children, whatever they do."""
        self.child.clean_up()


class BrokerNode(ProcessNode):
    """``opendata-queue broker`` on a port that it keeps over restarts."""

    def __init__(self, store: Path, logs: Path) -> None:
        self._store = store
        self._logs = logs
        self._port = 0
        super().__init__("broker")

    def _start(self) -> Child:
        listen = f"tcp:127.0.0.1:{self._port}"
        broker = ServedBroker(self._logs, "--store", f"file://{self._store}", "--listen", listen)
        self._port = broker.port
        return broker

    @property
    def celeryconfig(self) -> dict[str, Any]:
        url = f"opendata://127.0.0.1:{self._port}"
        return {"url": url, "host_url": url}


class WorkerNode(ProcessNode):
    """A worker of ``support/apps/farm.py``."""

    child: Worker

    def __init__(self, url: str, logs: Path, pool: str, number: int = 1, **settings: Any) -> None:
        self._url = url
        self._logs = logs
        self._pool = pool
        self._settings = {"include": ["pools"], **settings}
        super().__init__(f"{pool}{number}")

    def _start(self) -> Worker:
        return Worker(self._url, self._logs, self._name, pool=self._pool, concurrency=2, **self._settings)

    def ready(self) -> bool:
        self.child.wait_ready()
        return True

    def version(self) -> str:
        return str(celery.__version__)

    def log_level(self) -> str:
        return "INFO"

    def worker_name(self) -> str:
        return self.child.name

    def worker_queue(self) -> str:
        return "celery"
