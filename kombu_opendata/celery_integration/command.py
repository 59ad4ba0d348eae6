"""Command group ``celery -A app opendata``: the commands of ``opendata-queue`` for the app's broker, and Flower.

Celery finds this command by its entry point.
"""

from __future__ import annotations

from importlib.util import find_spec

import click

from ..cli.exit_codes import HELP, CommandError, CommandGroup
from ..cli.root import shared_commands
from ..cli.target import Target


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

    As "celery flower", with the same options and variables; in addition, the broker tab and /api/queues/length work.
    """
    if find_spec("flower") is None:
        raise CommandError("Flower is not installed: pip install flower")
    from flower.command import flower as start

    from .flower_broker import install

    target = Target()
    target.address  # noqa: B018 - refuses an app with another broker
    install(target)
    with start.make_context("flower", list(flower_options), parent=ctx.find_root()) as started:
        start.invoke(started)
