"""A worker whose results are kept, and the app that asks for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import Celery

from .broker import EmbeddedBroker
from .processes import children
from .workers import Worker

SECONDS = 60


class OrchardWorker(Worker):
    """A worker of ``apps/orchard.py``."""

    app = "orchard"


class Orchard:
    """An app that knows the names of ``apps/orchard.py``'s tasks, and a worker of it."""

    def __init__(self, app: Celery, worker: Worker) -> None:
        self.app = app
        self.worker = worker

    def sig(self, name: str, *args: Any, **options: Any) -> Any:
        """A signature of one of its tasks; ``add`` is the farm's."""
        place = "farm" if name == "add" else "orchard"
        return self.app.signature(f"{place}.{name}", args, **options)

    def delay(self, name: str, *args: Any, **options: Any) -> Any:
        return self.sig(name, *args).apply_async(**options)


@contextmanager
def asking(url: str, backend: str | None = None, **settings: Any) -> Iterator[Celery]:
    """An app with a result backend, the broker's URL where none is said."""
    app = Celery("asker", broker=url, backend=backend or url, set_as_current=True)
    app.conf.update(settings)
    try:
        yield app
    finally:
        app.close()


@contextmanager
def orchard(
    url: str, folder: Path, *options: str, backend: str | None = None, pool: str = "solo", **settings: Any
) -> Iterator[Orchard]:
    """A worker, and an app that asks it."""
    kept = {"result_backend": backend or url, "task_ignore_result": False, **settings}
    with children() as started, asking(url, backend, **settings) as app:
        worker = OrchardWorker(url, folder, pool, *options, pool=pool, concurrency=2, **kept)
        started.add(worker)
        worker.wait_ready()
        yield Orchard(app, worker)
        if url.startswith("opendata:///"):
            # Celery's stop of prefork may lose sight of a task whose start it has not seen yet, and then take 33 s.
            EmbeddedBroker(Path(url.removeprefix("opendata://"))).wait_queue("celery", 0, 0)
        assert worker.terminate() == 0


def environment(url: str, **settings: Any) -> dict[str, str]:
    """For a ``celery -A orchard …`` command."""
    kept = {"result_backend": url, "task_ignore_result": False, **settings}
    return {"CELERY_BROKER_URL": url, "FARM_SETTINGS": json.dumps(kept)}
