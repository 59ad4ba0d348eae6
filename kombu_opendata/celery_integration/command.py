"""``celery -A app opendata``: the app's broker from the command line. Celery finds it by its entry point.

The commands are those of ``opendata-queue``; the broker is the app's.
"""

from __future__ import annotations

import click

from ..cli.exit_codes import EPILOG, HELP, Group
from ..cli.root import shared_commands


@click.group("opendata", cls=Group, context_settings=HELP, epilog=EPILOG)
def opendata() -> None:
    """Look at the app's broker, its queues and its messages, and change them."""


for _command in shared_commands():
    opendata.add_command(_command)
