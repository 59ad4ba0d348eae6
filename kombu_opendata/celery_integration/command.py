"""Command group ``celery -A app opendata``: the commands of ``opendata-queue`` for the app's broker, and Flower.

Celery finds this command by its entry point.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import click

from ..cli.exit_codes import HELP, CommandError, CommandGroup
from ..cli.root import shared_commands
from ..cli.target import Target
from ..errors import OpenDataError
from ..url import SCHEMES


@click.group("opendata", cls=CommandGroup, context_settings=HELP)
def opendata() -> None:
    """Inspect and change the app's broker, its queues and its messages."""


for _command in shared_commands():
    opendata.add_command(_command)


# Errors and exit codes are Flower's, so this is a plain command.
@opendata.command(
    cls=click.Command,
    context_settings={"ignore_unknown_options": True},
    epilog="Example: celery -A tasks opendata flower --port=5555",
)
@click.argument("flower_options", nargs=-1, type=click.UNPROCESSED, metavar="[FLOWER OPTION]...")
@click.pass_context
def flower(ctx: click.Context, flower_options: tuple[str, ...]) -> None:
    """Start Flower, which also shows this broker's queues.

    Options and variables are those of "celery flower". In addition, the broker tab and /api/queues/length work.
    """
    if find_spec("flower") is None:
        raise CommandError("Flower is not installed: pip install flower")
    from flower.command import flower as start

    target = Target()
    target.address  # noqa: B018 - refuses an app with another broker
    _install(target)
    with start.make_context("flower", list(flower_options), parent=ctx.find_root()) as started:
        start.invoke(started)


class OpenDataBroker:
    """Source of Flower's queue metrics: its broker tab, and ``/api/queues/length``.

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
        return await get_running_loop().run_in_executor(None, self._queues, frozenset(names))

    def _queues(self, names: frozenset[str]) -> list[dict[str, Any]]:
        from tornado.web import HTTPError

        try:
            with self._target.client(read_only=True) as client:
                metrics = client.metrics_all()
        except (CommandError, OpenDataError, TimeoutError) as exc:
            raise HTTPError(503, str(exc)) from exc
        return [
            {
                "name": name,
                "messages": queue.length,
                "messages_ready": queue.ready,
                "messages_unacknowledged": queue.in_flight,
                "messages_delayed": queue.delayed,
                "consumers": queue.consumers,
            }
            for name, queue in metrics.items()
            if name in names
        ]


def _install(target: Target) -> None:
    """Replace the factory of Flower's brokers, because Flower has no registry of brokers."""
    from flower.utils.broker import Broker

    make = Broker.__new__

    def make_broker(cls: type[Broker], broker_url: str, *args: Any, **kwargs: Any) -> Any:
        if broker_url.partition("://")[0] in SCHEMES:
            return OpenDataBroker(target)
        return make(cls, broker_url, *args, **kwargs)

    Broker.__new__ = make_broker
