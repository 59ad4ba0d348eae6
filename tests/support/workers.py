"""Celery workers, and the app that sends them tasks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import Celery

from .processes import Child, tail, wait_until

APPS = Path(__file__).parent / "apps"
READY_SECONDS = 60


class CeleryWorker(Child):
    """``celery worker`` for an app, which reads CELERY_BROKER_URL.

    Args:
        app: the app's module, in the folder ``cwd``.
        python: the interpreter, if it is another one than that of the tests.
        inside: what the command line begins with.

    Attributes:
        name: its node name, as remote control knows it.
    """

    def __init__(
        self,
        app: str,
        url: str,
        folder: Path,
        name: str,
        *options: str,
        cwd: Path,
        pool: str = "solo",
        concurrency: int = 1,
        python: str = sys.executable,
        inside: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
    ) -> None:
        self.name = f"{name}@test"
        command = [*inside, python, "-m", "celery", "-A", app, "worker", "--loglevel=INFO", f"--hostname={self.name}"]
        command += [f"--pool={pool}", f"--concurrency={concurrency}", *options]
        super().__init__(command, folder / f"{name}.log", cwd=cwd, env={"CELERY_BROKER_URL": url, **(env or {})})

    def is_ready(self) -> bool:
        """Whether it consumes."""
        return f"{self.name} ready." in self.log.read_text(errors="replace")

    def wait_until_ready(self) -> None:
        """Until it consumes; the test fails when it ends before."""
        wait_until(
            lambda: self.is_ready() or self.ended,
            READY_SECONDS,
            lambda: f"worker {self.name} ready:\n{tail(self.log)}",
        )
        self.check()


class Worker(CeleryWorker):
    """A worker of ``apps/farm.py``, or of another app there, on a broker URL.

    Attributes:
        app: the module in ``apps``.
        inside: what the command line begins with, for a host of a :class:`.network.Network`.
        mingles: whether it asks other workers at its start, which takes a second if nobody answers.
    """

    app = "farm"
    inside: tuple[str, ...] = ()
    mingles = False

    def __init__(
        self,
        url: str,
        folder: Path,
        name: str,
        *options: str,
        pool: str = "solo",
        concurrency: int = 1,
        **settings: Any,
    ) -> None:
        self._ready = folder / f"{name}.ready"
        if not self.mingles:
            options = (*options, "--without-mingle")
        env = {"FARM_READY": str(self._ready), "FARM_SETTINGS": json.dumps(settings)}
        super().__init__(
            self.app, url, folder, name, *options,
            cwd=APPS, pool=pool, concurrency=concurrency, inside=self.inside, env=env,
        )  # fmt: skip

    def is_ready(self) -> bool:
        return self._ready.exists()

    def wait_ready(self) -> dict[str, Any]:
        """What the worker says about itself, once it consumes."""
        self.wait_until_ready()
        told: dict[str, Any] = json.loads(self._ready.read_text())
        return told


class MinglingWorker(Worker):
    """A worker that asks other workers at its start, as workers do by default."""

    mingles = True


@contextmanager
def sender(url: str) -> Iterator[Celery]:
    """An app that knows nothing of the tasks but their names, and a broker_url."""
    app = Celery("sender", broker=url, set_as_current=False)
    try:
        yield app
    finally:
        app.close()
