"""Broker interface of Flower: its broker tab, and ``/api/queues/length``."""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Iterable
from typing import Any

from flower.utils.broker import Broker
from tornado.web import HTTPError

from ..cli.exit_codes import CommandError
from ..cli.target import Target
from ..errors import OpenDataError
from ..queue_client.queue_models import QueueMetrics
from ..url import SCHEMES


class OpenDataBroker:
    """Source of Flower's queue metrics.

    Each request opens a new connection. It therefore reaches the current active broker, and never depends on a
    connection to a broker that hangs.
    """

    def __init__(self, target: Target) -> None:
        self._target = target

    async def queues(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """Return the metrics of the existing queues that the user may see, by RabbitMQ's names.

        Raises:
            HTTPError: 503: no broker answers, or it refuses the user.
        """
        return await get_running_loop().run_in_executor(None, self._ask, frozenset(names))

    def _ask(self, names: frozenset[str]) -> list[dict[str, Any]]:
        try:
            with self._target.client(looks=True) as client:
                metrics = client.metrics_all()
        except (CommandError, OpenDataError, TimeoutError) as exc:
            raise HTTPError(503, str(exc)) from exc
        return [_figures(queue) for name, queue in metrics.items() if name in names]


def _figures(queue: QueueMetrics) -> dict[str, Any]:
    return {
        "name": queue.queue,
        "messages": queue.length,
        "messages_ready": queue.visible,
        "messages_unacknowledged": queue.in_flight,
        "messages_delayed": queue.delayed,
        "consumers": queue.consumers,
    }


def install(target: Target) -> None:
    """Replace the factory of Flower's brokers, as Flower has no registry of brokers, so that it uses this one."""
    make = Broker.__new__

    def make_broker(cls: type[Broker], broker_url: str, *args: Any, **kwargs: Any) -> Any:
        if broker_url.partition("://")[0] in SCHEMES:
            return OpenDataBroker(target)
        return make(cls, broker_url, *args, **kwargs)

    Broker.__new__ = make_broker
