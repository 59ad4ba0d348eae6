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
    """``broker`` itself; the verbs that may stand behind it are completed, too."""

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
    help="open at start, and make where there is none; may be repeated",
)
@click.option("--create-instances", is_flag=True, help="make any instance that a client names, misspelt ones too")
@click.option("--users", type=click.Path(path_type=Path), help="file with name:hash lines, see hash-secret")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="certificate chain (PEM) for opendatas:// clients")
@click.option("--tls-key", type=click.Path(path_type=Path), help="its private key (PEM), if not in that file")
@click.option("--allow-anonymous", is_flag=True, help="listen on a network without --users")
@click.option("--allow-cleartext", is_flag=True, help="listen on a network with --users and without TLS")
@click.option(
    "--max-connections",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="of clients; fewer where ulimit -n does not allow as many",
)
@click.option(
    "--greeting-timeout",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    help="seconds for a new connection to say who it is, TLS handshake included",
)
@click.option(
    "--max-message-bytes",
    type=click.IntRange(1 << 10, 512 << 20),
    metavar="BYTES",
    default=128 << 20,
    show_default=True,
    help="the largest message, or task's result",
)
@click.option(
    "--no-sync",
    is_flag=True,
    help="skip fsync: a power loss may lose confirmed messages, a crash of the broker does not",
)
@click.option(
    "--idle-exit",
    type=click.FloatRange(0),
    default=0,
    metavar="SECONDS",
    help="stop after this long without a client; 0: never",
)
@click.option(
    "--maintain-every",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="time between the broker's own maintenance runs; a client that asks for maintenance postpones them",
)
@click.option(
    "--retention-bytes",
    type=Size(),
    help="past so many bytes (or 20G) the oldest settled messages of an instance go early; 0: no limit; "
    "default: a quarter of a folder's disk, and no limit for a bucket",
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
    type=KEEP,
    default="settled",
    show_default=True,
    help="how long messages can be replayed that no queue needs any more: a time since they were received, as 7d, or "
    "forever; settled: not at all",
)
@click.option(
    "--heartbeat",
    type=click.FloatRange(0),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="time between heartbeats to TCP clients; 0: as they ask for",
)
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="serve Prometheus metrics at /metrics there; a PORT alone: for this host only",
)
@click.option(
    "--metrics-max-queues",
    type=click.IntRange(0, 10_000),
    default=200,
    show_default=True,
    metavar="N",
    help="how many queues have series of their own; the others are summed",
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
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="log each commit that takes this long or longer",
)
@click.option("--embedded", is_flag=True, hidden=True)
@click.option("--ready-fd", type=int, hidden=True)
def broker(
    store: str,
    listen: tuple[str, ...],
    instances: tuple[str, ...],
    create_instances: bool,
    users: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    allow_anonymous: bool,
    allow_cleartext: bool,
    max_connections: int,
    greeting_timeout: float,
    max_message_bytes: int,
    no_sync: bool,
    idle_exit: float,
    maintain_every: float,
    retention_bytes: int | None,
    history_days: float,
    log_retention: float,
    heartbeat: float,
    metrics: str | None,
    metrics_max_queues: int,
    log_format: str,
    log_level: str,
    slow_commit: float,
    embedded: bool,
    ready_fd: int | None,
) -> None:
    """Run a broker: the one process that owns a store. SIGTERM stops it cleanly.

    \b
    broker status   show a running broker's queues, depths and consumers
    broker stop     stop the broker of a folder
    """
    from ..broker.options import BrokerOptions, parse_listen, parse_metrics
    from ..broker.process import Readiness, run

    try:
        options = BrokerOptions(
            store=store,
            listen=tuple(parse_listen(text) for text in listen),
            embedded=embedded,
            ready_fd=ready_fd,
            idle_exit_seconds=idle_exit,
            heartbeat_seconds=heartbeat,
            max_message_bytes=max_message_bytes,
            max_connections=max_connections,
            greeting_seconds=greeting_timeout,
            sync=not no_sync,
            users=users,
            tls_cert=tls_cert,
            tls_key=tls_key,
            allow_anonymous=allow_anonymous,
            allow_cleartext=allow_cleartext,
            instances=instances,
            create_instances=create_instances,
            maintain_every_seconds=maintain_every,
            metrics=parse_metrics(metrics) if metrics is not None else None,
            metrics_max_queues=metrics_max_queues,
            log_format=log_format,
            log_level=log_level.upper(),
            slow_commit_seconds=slow_commit,
            retention_bytes=retention_bytes,
            history_days=history_days,
            log_retention_seconds=log_retention,
        )
    except OpenDataError as exc:
        Readiness(ready_fd).report({"code": exc.code, "text": exc.text, "values": exc.values})
        raise Failure(exc.text, USAGE) from exc
    sys.exit(run(options))


@click.command("hash-secret", cls=Command, epilog=EPILOG)
def hash_secret() -> None:
    """Print the hash of a secret for the --users file.

    The file has a line name:hash for each user.

    The secret is asked for, or read from standard input where that is no terminal. There is no option for it, because
    other users of the machine could see it in the list of processes.
    """
    from ..broker.users import hash_secret as make

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
