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


class Worker(Child):
    """A worker of ``apps/farm.py``, or of another app there, on a broker URL.

    Attributes:
        name: its node name, as remote control knows it.
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
        self.name = f"{name}@test"
        self._ready = folder / f"{name}.ready"
        command = [
            *self.inside,
            sys.executable,
            "-m",
            "celery",
            "-A",
            self.app,
            "worker",
            "--loglevel=INFO",
            f"--hostname={self.name}",
        ]
        command += [f"--pool={pool}", f"--concurrency={concurrency}", *options]
        if not self.mingles:
            command.append("--without-mingle")
        env = {"CELERY_BROKER_URL": url, "FARM_READY": str(self._ready), "FARM_SETTINGS": json.dumps(settings)}
        super().__init__(command, folder / f"{name}.log", cwd=APPS, env=env)

    def wait_ready(self) -> dict[str, Any]:
        """What the worker says about itself, once it consumes."""
        wait_until(
            lambda: self._ready.exists() or self.ended,
            READY_SECONDS,
            lambda: f"worker {self.name} ready:\n{tail(self.log)}",
        )
        self.check()
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
