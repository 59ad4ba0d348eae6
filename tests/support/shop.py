"""A shop with trouble: what an operator meets on the page, with real workers and a beat."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import Celery, group

from kombu_opendata import QueueClient
from tests.support.waiting import pass_time

from .processes import Child, Children, children, tail, wait_until
from .workers import APPS, Worker, sender

SECONDS = 60
ORDERS = 60
#: of 60 orders: two of each of three kinds
FAILURES = 6


class ShopWorker(Worker):
    """A worker of ``apps/shop.py``."""

    app = "shop"


class Beat(Child):
    """The shop's beat."""

    def __init__(self, url: str, folder: Path) -> None:
        line = [sys.executable, "-m", "celery", "-A", "shop", "beat", "--loglevel=INFO", "--pidfile="]
        env = {"CELERY_BROKER_URL": url, "FARM_SETTINGS": json.dumps({"result_backend": url})}
        super().__init__([*line, f"--schedule={folder}/beat"], folder / "beat.log", cwd=APPS, env=env)


class Shop:
    """Queues: ``billing`` (one task in ten fails), ``mail``, ``orders`` (a canvas), ``stock`` (its task hangs), and
    ``reports`` (nobody consumes).

    Attributes:
        gate: while this file does not exist, ``shop.sync_stock`` hangs.
        canvas: the id of the last task of a canvas: a task, two in a chord, and the one that gets their results.
        hanging: the id of the task that hangs.
        workers: its workers.
    """

    def __init__(self, app: Celery, url: str, folder: Path, processes: Children) -> None:
        self.app, self.url, self._folder, self._processes = app, url, folder, processes
        self.gate = folder / "gate"
        self.canvas = ""
        self.hanging = ""
        self.workers: list[ShopWorker] = []

    def signature(self, name: str, queue: str, *args: Any, **kwargs: Any) -> Any:
        """A signature of one of its tasks."""
        return self.app.signature(f"shop.{name}", args, kwargs, queue=queue)

    def open(self) -> None:
        """Start workers and beat, send tasks, and wait until all that can end has ended."""
        queues = {"counter": "billing,mail,orders", "warehouse": "stock"}
        for name, consumed in queues.items():
            options: dict[str, Any] = {"pool": "prefork", "concurrency": 2, "result_backend": self.url}
            self._processes.add(worker := ShopWorker(self.url, self._folder, name, "-Q", consumed, **options))
            worker.wait_ready()
            self.workers.append(worker)
        self._processes.add(Beat(self.url, self._folder))
        self.send()

    def send(self) -> None:
        """Send tasks of every kind."""
        for order in range(ORDERS):
            self.signature("charge", "billing", order, card_token="tok_4242").delay()
        for month in ("september", "october", "november"):
            self.signature("monthly_report", "reports", month).delay()
        for hours in range(1, 12):
            self.signature("send_mail", "mail", "reminder", "you@example.org").apply_async(countdown=hours * 1800)
        self.hanging = str(self.signature("sync_stock", "stock", str(self.gate)).delay().id)
        # with one first task, as each task of a chord's header is the root of its own otherwise
        wraps = group(self.signature("wrap", "orders"), self.signature("wrap", "orders"))
        canvas = self.signature("pack", "orders", 1) | wraps | self.signature("ship", "orders")
        self.canvas = str(canvas.delay().id)
        with QueueClient(self.url) as client:
            wait_until(
                lambda: sum(one.count for one in client.group_failures(["task"]).groups) == FAILURES,
                SECONDS,
                lambda: f"the failures:\n{tail(self._folder / 'counter.log')}",
            )
            wait_until(lambda: client.metrics("stock").in_flight or self._runs(client), SECONDS, "the task that hangs")

    def trade(self, seconds: float) -> None:
        """Send orders for so long, ten a second."""
        for order in range(round(10 * seconds)):
            self.signature("charge", "billing", order, card_token="tok_4242").delay()
            pass_time(0.1)

    def _runs(self, client: QueueClient) -> bool:
        return any(one.running for one in client.workers())


@contextmanager
def open_shop(url: str, folder: Path) -> Iterator[Shop]:
    """A shop whose processes are gone at the end."""
    with children() as processes, sender(url) as app:
        app.conf.result_backend = url
        shop = Shop(app, url, folder, processes)
        try:
            shop.open()
            yield shop
        finally:
            shop.gate.touch()
