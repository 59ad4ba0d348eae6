"""Commands ``opendata-queue broker`` and ``hash-secret``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from ...errors import OpenDataError
from ..exit_codes import USAGE, Command, CommandError
from ..target import json_option
from ..terminal.output import print_json
from .broker_options import broker_options, collected
from .brokers import broker_tools
from .secret_prompt import read_secret


class _Broker(Command):
    """The command ``broker``, which also completes ``status`` and ``stop``."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[Any]]:
        items = super().shell_complete(ctx, incomplete)
        if not ctx.params.get("store"):
            items += [
                CompletionItem(name, help=verb.get_short_help_str())
                for name, verb in sorted(broker_tools.commands.items())
                if name.startswith(incomplete)
            ]
        return items


@click.command(
    cls=_Broker, epilog="Example: opendata-queue broker --store /var/lib/app-queue --listen unix:/run/app-queue.sock"
)
@broker_options
@click.option("--ready-fd", type=int, hidden=True)
def broker(config: Path | None, ready_fd: int | None, **given: Any) -> None:
    """Run a broker: the one process that owns a store. SIGTERM stops it cleanly.

    \b
    broker start      start the broker of a folder in the background
    broker status     show a running broker's queues, depths and consumers
    broker reload     let a running broker read its users file and certificates again
    broker stop       stop the broker of a folder
    broker hand-over  move the service to the standby

    Each option can also be set in a TOML file (max-connections = 500) or in the environment
    (OPENDATA_QUEUE_MAX_CONNECTIONS=500). The command line comes first, then the environment, then the file.
    """  # noqa: D301 - click looks for the character itself
    from ...broker.process.process import Readiness, run

    configuration = collected(config, given)
    try:
        options = configuration.options()
    except OpenDataError as exc:
        Readiness(ready_fd).report({"code": exc.code, "text": exc.text, "values": exc.values})
        raise CommandError(exc.text, USAGE) from exc
    sys.exit(run(options, ready_fd, configuration.warnings))


@click.command("hash-secret", cls=Command, epilog="Example: opendata-queue hash-secret < secret.txt")
@json_option
def hash_secret(as_json: bool) -> None:
    """Print the hash of a secret for the --users file.

    The hash is the secret of a table [users.NAME]; user add writes it there.

    The command prompts for the secret, or reads it from standard input if that is not a terminal. There is no option
    for it, because other users of the machine could see it in the list of processes.
    """
    from ...broker.access.secret_hashes import hash_secret as make

    try:
        hashed = make(read_secret())
    except OpenDataError as exc:
        raise CommandError(exc.text, USAGE) from exc
    if as_json:
        print_json({"secret": hashed})
    else:
        click.echo(hashed)
