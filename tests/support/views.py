"""Every view of the page, and where it is in a shop."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from kombu_opendata import QueueClient
from kombu_opendata.protocol.messages import FailureInfo

from .batches import commit_job
from .shop import Shop


def _worker(shop: Shop) -> str:
    """The id of the worker whose task hangs."""
    with QueueClient(shop.url) as client:
        return next(one.id for one in client.workers() if one.name == "warehouse@test" and one.consumers)


def _failed(shop: Shop) -> FailureInfo:
    with QueueClient(shop.url) as client:
        return client.list_failures(limit=1, tasks=["shop.charge"]).items[0]


def _job(shop: Shop) -> str:
    """The id of a Spark job whose tasks have no queue."""
    with QueueClient(shop.url) as client:
        return commit_job(client, "invoices", 2, queue="nowhere").job_id


#: one entry a view, all of which axe-core checks and the pictures show; the path below the page's address
VIEWS: dict[str, Callable[[Shop], str]] = {
    "overview": lambda _shop: "",
    "queue": lambda _shop: "queue?name=billing&tab=failed",
    "failed": lambda _shop: "failed",
    "task": lambda shop: f"task?id={quote(_failed(shop).task_id)}",
    "message": lambda shop: f"message?id={_failed(shop).message_id}",
    "canvas": lambda shop: f"task?id={quote(shop.canvas)}",
    "running": lambda _shop: "queue?name=stock&tab=running",
    "workers": lambda _shop: "workers",
    "worker": lambda shop: f"worker?id={_worker(shop)}",
    "exchanges": lambda _shop: "exchanges",
    "exchange": lambda _shop: "exchange?name=billing",
    "route": lambda _shop: "exchanges/route?name=billing&routing_key=billing",
    "schedules": lambda _shop: "schedules?hours=6",
    "replays": lambda _shop: "replays",
    "spark-job": lambda shop: f"spark-job?id={_job(shop)}",
    "spark-jobs": lambda _shop: "spark-jobs",
    "jobs": lambda _shop: "jobs",
    "store": lambda _shop: "store",
}


def address(view: str, shop: Shop, site: str) -> str:
    """A view's address."""
    return site + VIEWS[view](shop)
