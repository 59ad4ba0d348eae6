"""``opendata-queue broker`` and ``hash-secret``: running a broker by hand."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
from click.shell_completion import CompletionItem

from ..errors import OpenDataError
from .brokers import broker_tools
from .exit_codes import EPILOG, USAGE, Command, Failure
from .option_types import KEEP, Size


class _Broker(Command):
    """``broker`` itself, which also completes ``status`` and ``stop``."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[Any]]:
        found = super().shell_complete(ctx, incomplete)
        if not ctx.params.get("store"):
            found += [
                CompletionItem(name, help=verb.get_short_help_str())
                for name, verb in sorted(broker_tools.commands.items())
                if name.startswith(incomplete)
            ]
        return found


def _store_url(_context: click.Context, _param: click.Parameter, text: str) -> str:
    return text if "://" in text else f"file://{quote(os.path.abspath(text))}"


# the names of most options are those of the fields of BrokerOptions
@click.command(cls=_Broker, epilog=EPILOG)
@click.option(
    "--store",
    required=True,
    callback=_store_url,
    metavar="FOLDER|URL",
    help="a folder, or an object store: s3://bucket/prefix, gs://…, az://…, memory://name",
)
@click.option("--listen", multiple=True, required=True, help="unix:PATH or tcp:HOST:PORT; may be repeated")
@click.option(
    "--instance",
    "instances",
    multiple=True,
    default=("default",),
    show_default=True,
    help="open it at the start, and create it if it does not exist; may be repeated",
)
@click.option(
    "--standby",
    is_flag=True,
    help="be active if no other broker of the store is; else wait, send clients there, and take over when it is gone",
)
@click.option(
    "--advertise",
    multiple=True,
    metavar="HOST:PORT",
    help="where clients and the standby reach this broker; may be repeated; default: where it listens",
)
@click.option("--create-instances", is_flag=True, help="create any instance that a client names, even a misspelt one")
@click.option("--users", type=click.Path(path_type=Path), help="TOML file of users and their rights; see user add")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="certificate chain (PEM) for opendatas:// clients")
@click.option("--tls-key", type=click.Path(path_type=Path), help="its private key (PEM), if it is not in that file")
@click.option(
    "--tls-client-ca",
    type=click.Path(path_type=Path),
    help="authorities (PEM) whose certificates clients log in with; may hold their revocation lists, too",
)
@click.option(
    "--tls-client-auth",
    type=click.Choice(["required", "optional"]),
    default="required",
    show_default=True,
    help="with --tls-client-ca: whether a client without a certificate may log in with a secret (optional)",
)
@click.option("--allow-anonymous", is_flag=True, help="listen on a network without --users")
@click.option("--allow-cleartext", is_flag=True, help="listen on a network with --users but without TLS")
@click.option(
    "--max-connections",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="connections of clients; fewer if ulimit -n does not allow as many",
)
@click.option(
    "--greeting-timeout",
    "greeting_seconds",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    help="seconds within which a new connection must log in, TLS handshake included",
)
@click.option(
    "--max-message-bytes",
    type=click.IntRange(1 << 10, 512 << 20),
    metavar="BYTES",
    default=128 << 20,
    show_default=True,
    help="the largest message, or result of a task",
)
@click.option(
    "--no-sync",
    is_flag=True,
    help="skip fsync: a power loss may then lose confirmed messages, a crash of the broker does not",
)
@click.option(
    "--idle-exit",
    "idle_exit_seconds",
    type=click.FloatRange(0),
    default=0,
    metavar="SECONDS",
    help="stop after this long without a client; 0: never",
)
@click.option(
    "--maintain-every",
    "maintain_every_seconds",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="time between the broker's own maintenance runs; a client that asks for maintenance postpones them",
)
@click.option(
    "--retention-bytes",
    type=Size(),
    help="above this size (such as 20G), the oldest settled messages of an instance are removed early; 0: no limit; "
    "default: a quarter of the disk for a folder, no limit for a bucket",
)
@click.option(
    "--history-days",
    type=click.FloatRange(0),
    default=14.0,
    show_default=True,
    metavar="DAYS",
    help="how long finished attempts are kept; 0: no history",
)
@click.option(
    "--log-retention",
    "log_retention_seconds",
    type=KEEP,
    default="settled",
    show_default=True,
    help="how long messages that no queue needs any more can still be replayed: a time since they were received (7d), "
    "or forever; settled: not at all",
)
@click.option(
    "--heartbeat",
    "heartbeat_seconds",
    type=click.FloatRange(0),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="time between heartbeats to TCP clients; 0: as the clients ask",
)
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="serve Prometheus metrics there at /metrics; a PORT alone: for this host only",
)
@click.option(
    "--metrics-max-queues",
    type=click.IntRange(0, 10_000),
    default=200,
    show_default=True,
    metavar="N",
    help="how many queues have their own series; the others are summed",
)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], case_sensitive=False),
    default="INFO",
    show_default=True,
)
@click.option(
    "--slow-commit",
    "slow_commit_seconds",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="log each commit that takes at least this long",
)
@click.option("--embedded", is_flag=True, hidden=True)
@click.option("--ready-fd", type=int, hidden=True)
def broker(
    listen: tuple[str, ...], no_sync: bool, metrics: str | None, log_level: str, ready_fd: int | None, **settings: Any
) -> None:
    """Run a broker: the one process that owns a store. SIGTERM stops it cleanly.

    \b
    broker status   show a running broker's queues, depths and consumers
    broker stop     stop the broker of a folder
    """
    from ..broker.process.broker_options import BrokerOptions, parse_listen, parse_metrics
    from ..broker.process.process import Readiness, run

    try:
        options = BrokerOptions(
            listen=tuple(parse_listen(text) for text in listen),
            sync=not no_sync,
            metrics=parse_metrics(metrics) if metrics is not None else None,
            log_level=log_level.upper(),
            ready_fd=ready_fd,
            **settings,
        )
    except OpenDataError as exc:
        Readiness(ready_fd).report({"code": exc.code, "text": exc.text, "values": exc.values})
        raise Failure(exc.text, USAGE) from exc
    sys.exit(run(options))


@click.command("hash-secret", cls=Command, epilog=EPILOG)
def hash_secret() -> None:
    """Print the hash of a secret for the --users file.

    It is the secret of a table [users.NAME]; user add writes it there.

    The command prompts for the secret, or reads it from standard input if that is not a terminal. There is no option
    for it, because other users of the machine could see it in the list of processes.
    """
    from ..broker.access.secret_hashes import hash_secret as make

    try:
        click.echo(make(_read_secret()))
    except OpenDataError as exc:
        raise Failure(exc.text, USAGE) from exc


def _read_secret() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Secret", hide_input=True, confirmation_prompt=True, err=True))
    try:
        secret = sys.stdin.buffer.read().decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as exc:
        raise Failure("the secret on standard input is not UTF-8", USAGE) from exc
    if "\n" in secret:
        raise Failure("standard input has more than one line: give the secret alone", USAGE)
    return secret
