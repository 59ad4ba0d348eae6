"""``celery -A app opendata``: the commands of ``opendata-queue`` for the app's broker.

Celery finds this command by its entry point.
"""

from __future__ import annotations

import click

from ..cli.exit_codes import HELP, Group
from ..cli.root import shared_commands


@click.group("opendata", cls=Group, context_settings=HELP)
def opendata() -> None:
    """Inspect and change the app's broker, its queues and its messages."""


for _command in shared_commands():
    opendata.add_command(_command)
